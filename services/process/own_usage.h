// What this process has used: for its metrics, and what a task tells its worker service.
#ifndef CAPSTAN_SERVICES_PROCESS_OWN_USAGE_H_
#define CAPSTAN_SERVICES_PROCESS_OWN_USAGE_H_

#include <cstdint>

namespace capstan::services {

// User and system time of all its threads since its start, without its children.
double OwnCpuSeconds();
// Of /proc/self/statm; 0: it cannot be read.
int64_t OwnResidentBytes();

}  // namespace capstan::services

#endif  // CAPSTAN_SERVICES_PROCESS_OWN_USAGE_H_
