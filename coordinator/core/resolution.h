// The resolved spec of a job: what its members are sent, and the digest that tells it from others.
#ifndef CAPSTAN_COORDINATOR_CORE_RESOLUTION_H_
#define CAPSTAN_COORDINATOR_CORE_RESOLUTION_H_

#include <optional>
#include <string>

#include "capstan/job/v1/job_spec.pb.h"

namespace capstan::coordinator::core {

// Not thread-safe.
class Resolution {
 public:
  // nullopt: the data are not known yet.
  const std::optional<job::v1::ResolvedSpec>& spec() const { return spec_; }
  const std::string& bytes() const { return bytes_; }    // serialized
  const std::string& digest() const { return digest_; }  // 32 bytes: the SHA-256 of bytes()

  void Set(job::v1::ResolvedSpec spec);
  // As it was saved; without bytes there is none. False: the bytes are no resolved spec.
  bool Load(std::string bytes, std::string digest);

 private:
  std::optional<job::v1::ResolvedSpec> spec_;
  std::string bytes_;
  std::string digest_;
};

}  // namespace capstan::coordinator::core

#endif  // CAPSTAN_COORDINATOR_CORE_RESOLUTION_H_
