#include "services/process/own_usage.h"

#include <sys/resource.h>
#include <unistd.h>

#include <cstdio>

namespace capstan::services {

double OwnCpuSeconds() {
  rusage usage = {};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
         static_cast<double>(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) * 1e-6;
}

int64_t OwnResidentBytes() {
  long long total_pages = 0;     // NOLINT(runtime/int): what %lld takes
  long long resident_pages = 0;  // NOLINT(runtime/int)
  if (FILE* file = std::fopen("/proc/self/statm", "re")) {
    if (std::fscanf(file, "%lld %lld", &total_pages, &resident_pages) != 2) resident_pages = 0;
    std::fclose(file);
  }
  return int64_t{resident_pages} * sysconf(_SC_PAGESIZE);
}

}  // namespace capstan::services
