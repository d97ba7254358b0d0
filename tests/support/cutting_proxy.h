// A byte proxy between Unix sockets that cuts connections in the middle.
#ifndef CAPSTAN_TESTS_SUPPORT_CUTTING_PROXY_H_
#define CAPSTAN_TESTS_SUPPORT_CUTTING_PROXY_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace capstan::tests {

struct Cuts {
  int64_t bytes = 0;       // of one end on one connection, after which both ends are cut
  bool of_server = false;  // which end: the server, or the client
  int cuts = 0;            // number of connections to cut; later ones stay
  // Returns whether the other end has used those bytes. Bytes that it has received but not read are
  // lost with the connection. So the proxy takes nothing more from that end, and the cut waits for
  // this function (at most 20 s). Called on the proxy's thread. Empty: the cut does not wait.
  std::function<bool()> used;
};

// Serves one connection at a time; the client opens the next after a cut. Thread-safe.
class CuttingProxy {
 public:
  // Listens when it returns. Dials `target` for each connection.
  static absl::StatusOr<std::unique_ptr<CuttingProxy>> Start(const std::string& listen,
                                                             const std::string& target,
                                                             const Cuts& cuts);
  // Cuts the present connection.
  ~CuttingProxy();
  CuttingProxy(const CuttingProxy&) = delete;
  CuttingProxy& operator=(const CuttingProxy&) = delete;

  // The bytes that clients have sent, or servers with Cuts::of_server, by connection.
  std::vector<int64_t> sent_bytes() const;

 private:
  struct Impl;
  explicit CuttingProxy(std::unique_ptr<Impl> impl);
  const std::unique_ptr<Impl> impl_;
};

}  // namespace capstan::tests

#endif  // CAPSTAN_TESTS_SUPPORT_CUTTING_PROXY_H_
