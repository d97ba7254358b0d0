# `cpack` in a build folder makes a Debian package. It contains what `cmake --install` installs, the units of systemd with
# their settings, and the files for Prometheus and Grafana. It does not contain the CUDA plug-in, because Debian has no
# package of its libraries.
if(NOT EXISTS /etc/debian_version)
  return()
endif()

foreach(unit coordinator param-store gpu-worker)
  install(FILES ${PROJECT_SOURCE_DIR}/deploy/systemd/capstan-${unit}.service DESTINATION /lib/systemd/system
    COMPONENT debian EXCLUDE_FROM_ALL)
  string(REPLACE - _ settings ${unit})
  install(FILES ${PROJECT_SOURCE_DIR}/deploy/systemd/${settings}.env DESTINATION /etc/capstan
    COMPONENT debian EXCLUDE_FROM_ALL)
  string(APPEND conffiles "/etc/capstan/${settings}.env\n")
endforeach()
file(GLOB pages ${PROJECT_SOURCE_DIR}/docs/*.md)
list(FILTER pages EXCLUDE REGEX house-style)
install(FILES ${PROJECT_SOURCE_DIR}/README.md ${pages} ${PROJECT_SOURCE_DIR}/deploy/debian/copyright
  DESTINATION /usr/share/doc/capstan COMPONENT debian EXCLUDE_FROM_ALL)
foreach(rules prometheus alerts recording)
  install(FILES ${PROJECT_SOURCE_DIR}/deploy/prometheus/${rules}.yml DESTINATION /usr/share/capstan/prometheus
    COMPONENT debian EXCLUDE_FROM_ALL)
endforeach()
install(DIRECTORY ${PROJECT_SOURCE_DIR}/deploy/grafana/dashboards ${PROJECT_SOURCE_DIR}/deploy/grafana/provisioning
  DESTINATION /usr/share/capstan/grafana COMPONENT debian EXCLUDE_FROM_ALL
  FILE_PERMISSIONS OWNER_READ OWNER_WRITE GROUP_READ WORLD_READ)
file(WRITE ${PROJECT_BINARY_DIR}/debian/conffiles "${conffiles}")

set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME capstan)
set(CPACK_PACKAGE_CONTACT "Capstan <capstan@localhost>")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "data-parallel training as gRPC services")
set(CPACK_PACKAGE_DESCRIPTION "A coordinator, parameter stores and workers that train neural networks together,
and capstan, the command that submits, runs and watches training jobs.")
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_COMPONENTS_ALL Unspecified debian)
set(CPACK_COMPONENTS_GROUPING ALL_COMPONENTS_IN_ONE)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_DEPENDS passwd)
set(CPACK_DEBIAN_PACKAGE_RECOMMENDS ca-certificates)  # for `capstan data get`
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)
foreach(script postinst prerm postrm)
  list(APPEND CPACK_DEBIAN_PACKAGE_CONTROL_EXTRA ${PROJECT_SOURCE_DIR}/deploy/debian/${script})
endforeach()
list(APPEND CPACK_DEBIAN_PACKAGE_CONTROL_EXTRA ${PROJECT_BINARY_DIR}/debian/conffiles)
include(CPack)
