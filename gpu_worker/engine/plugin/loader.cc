#include "gpu_worker/engine/plugin/loader.h"

#include <dlfcn.h>
#include <unistd.h>

#include <cstdlib>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"

namespace capstan::engine {
namespace {

constexpr char kPluginFile[] = "libcapstan_cuda.so";
constexpr char kCannotOpen[] = ": cannot open shared object file";

// The folder of the running binary, without a trailing slash; empty if /proc is not mounted.
std::string BinaryFolder() {
  char path[4096];
  const ssize_t length = readlink("/proc/self/exe", path, sizeof path);
  if (length <= 0) return "";
  const absl::string_view whole(path, static_cast<size_t>(length));
  return std::string(whole.substr(0, whole.rfind('/')));
}

// Empty if none exists.
std::string FirstThatExists(const std::vector<std::string>& paths) {
  for (const std::string& path : paths) {
    if (access(path.c_str(), F_OK) == 0) return path;
  }
  return "";
}

std::string DlError() {
  const char* const error = dlerror();
  return error == nullptr ? "no reason given" : error;
}

// "13.0" for 13000.
std::string Version(int version) { return absl::StrCat(version / 1000, ".", version % 1000 / 10); }

absl::Status Unavailable(absl::string_view sentence) { return absl::UnavailableError(sentence); }

absl::StatusOr<LoadedPlugin> Probe(const std::string& path, const capstan_plugin_table& table) {
  capstan_probe probe = {};
  capstan_error error = {};
  const int32_t code = table.probe(&probe, &error);
  if (probe.driver_version > 0 && probe.driver_version < probe.needed_driver_version) {
    return Unavailable(absl::StrCat(
        "the NVIDIA driver is too old: it is for CUDA ", Version(probe.driver_version), ", ", path,
        " needs ", Version(probe.needed_driver_version), "; install a newer driver"));
  }
  if (code != 0) return Unavailable(absl::StrCat(path, " finds no GPU to use: ", error.text));
  if (probe.device_count < 1) {
    return Unavailable(absl::StrCat(
        path, " finds no GPU: the driver reports none (CUDA_VISIBLE_DEVICES may hide them)"));
  }
  LoadedPlugin plugin;
  plugin.path = path;
  plugin.table = &table;
  plugin.device_count = probe.device_count;
  plugin.libraries = probe.libraries;
  return plugin;
}

}  // namespace

LoaderOptions DefaultLoaderOptions() {
  LoaderOptions options;
  const char* const named = std::getenv("CAPSTAN_CUDA_PLUGIN");
  if (named != nullptr && *named != 0) {
    options.candidates = {named};
    return options;
  }
  const std::string folder = BinaryFolder();
  if (folder.empty()) return options;
  options.candidates = {absl::StrCat(folder, "/", kPluginFile),
                        absl::StrCat(folder, "/../lib/", kPluginFile)};
  return options;
}

bool PluginInstalled() { return !FirstThatExists(DefaultLoaderOptions().candidates).empty(); }

std::string ExplainDlError(absl::string_view path, absl::string_view error) {
  const size_t at = error.find(kCannotOpen);
  const absl::string_view missing = at == absl::string_view::npos ? "" : error.substr(0, at);
  if (missing.empty()) return absl::StrCat("the plug-in ", path, " cannot be loaded: ", error);
  if (missing == path) {
    return absl::StrCat("the plug-in ", path, " cannot be opened",
                        absl::StripPrefix(error.substr(at), kCannotOpen));
  }
  return absl::StrCat("the plug-in ", path, " needs the library ", missing,
                      ", which is not found; install it or name its folder in LD_LIBRARY_PATH");
}

absl::StatusOr<LoadedPlugin> LoadPlugin(const LoaderOptions& options) {
  if (!options.driver_library.empty() &&
      dlopen(options.driver_library.c_str(), RTLD_NOW | RTLD_LOCAL) == nullptr) {
    const std::string error = DlError();
    if (absl::StrContains(error, kCannotOpen)) {
      return Unavailable(absl::StrCat("no NVIDIA driver on this machine (", options.driver_library,
                                      " is not found), so the CUDA plug-in is not loaded"));
    }
    return Unavailable(
        absl::StrCat("the NVIDIA driver cannot be loaded, so neither is the CUDA "
                     "plug-in: ",
                     error));
  }
  std::string path = FirstThatExists(options.candidates);
  if (path.empty()) {
    return Unavailable(absl::StrCat("no CUDA plug-in: there is no ",
                                    absl::StrJoin(options.candidates, " and no "),
                                    "; this may be a build without CUDA"));
  }
  // Without a slash dlopen would search the system's folders.
  if (!absl::StrContains(path, '/')) path = absl::StrCat("./", path);
  void* const library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return Unavailable(ExplainDlError(path, DlError()));
  const auto factory =
      reinterpret_cast<capstan_plugin_factory>(dlsym(library, CAPSTAN_PLUGIN_FACTORY));
  if (factory == nullptr) {
    return Unavailable(
        absl::StrCat(path, " is not a plug-in of Capstan: it has no ", CAPSTAN_PLUGIN_FACTORY));
  }
  const capstan_plugin_table* const table = factory();
  if (table == nullptr) return Unavailable(absl::StrCat(path, " gives no table of functions"));
  if (table->abi != CAPSTAN_PLUGIN_ABI) {
    return Unavailable(absl::StrCat("the plug-in ", path, " is of another version: its ABI is ",
                                    table->abi, ", this worker's ", CAPSTAN_PLUGIN_ABI,
                                    "; install both from one build"));
  }
  return Probe(path, *table);
}

}  // namespace capstan::engine
