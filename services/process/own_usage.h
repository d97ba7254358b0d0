// What this process has used, for its metrics and for a task's reports to its worker service.
#ifndef CAPSTAN_SERVICES_PROCESS_OWN_USAGE_H_
#define CAPSTAN_SERVICES_PROCESS_OWN_USAGE_H_

#include <cstdint>

namespace capstan::services {

// User and system time of all its threads since its start, without its children.
double OwnCpuSeconds();
// From /proc/self/statm; 0 if it cannot be read.
int64_t OwnResidentBytes();

}  // namespace capstan::services

#endif  // CAPSTAN_SERVICES_PROCESS_OWN_USAGE_H_
