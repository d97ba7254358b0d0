// A proxy of bytes between Unix sockets whose connections are cut in the middle.
#ifndef CAPSTAN_TESTS_SUPPORT_CUTTING_PROXY_H_
#define CAPSTAN_TESTS_SUPPORT_CUTTING_PROXY_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace capstan::tests {

struct Cuts {
  int64_t bytes = 0;  // of the client, of one connection; then it is cut at both ends
  int cuts = 0;       // of so many connections; later ones stay
};

// One connection at a time: the client opens the next one when the last one is cut. Thread-safe.
class CuttingProxy {
 public:
  // Listens when it returns. `target` is dialled for each connection.
  static absl::StatusOr<std::unique_ptr<CuttingProxy>> Start(const std::string& listen,
                                                             const std::string& target,
                                                             const Cuts& cuts);
  // Cuts the connection at hand.
  ~CuttingProxy();
  CuttingProxy(const CuttingProxy&) = delete;
  CuttingProxy& operator=(const CuttingProxy&) = delete;

  // What clients have sent, by connection.
  std::vector<int64_t> sent_bytes() const;

 private:
  struct Impl;
  explicit CuttingProxy(std::unique_ptr<Impl> impl);
  const std::unique_ptr<Impl> impl_;
};

}  // namespace capstan::tests

#endif  // CAPSTAN_TESTS_SUPPORT_CUTTING_PROXY_H_
