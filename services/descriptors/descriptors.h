// How many descriptors sockets may use. The rest stays free for files of journals, checkpoints and
// certificates, even in a flood of connections.
//
// Thread-safe.
#ifndef CAPSTAN_SERVICES_DESCRIPTORS_DESCRIPTORS_H_
#define CAPSTAN_SERVICES_DESCRIPTORS_DESCRIPTORS_H_

namespace capstan::services {

// The limit of this process (RLIMIT_NOFILE).
int DescriptorLimit();

// How many of `limit` descriptors sockets may not use.
int DescriptorReserve(int limit);

// The kernel assigns the lowest free number, so the number of a new socket shows how many are open.
// True: close it.
bool IsInReserve(int fd);

}  // namespace capstan::services

#endif  // CAPSTAN_SERVICES_DESCRIPTORS_DESCRIPTORS_H_
