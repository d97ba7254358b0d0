// The status page on the coordinator's HTTP port: /, its style, script and picture, /login, /logout,
// and what the script asks for, /api/overview and /api/job.
//
// Who may look: whoever has the token of a client or an admin in tokens.json, by the form into a
// cookie or as `Authorization: Bearer`; with --insecure and no --tokens anybody; with neither nobody.
// As over gRPC everybody who may look sees all jobs, and the log lines of those that are his, or of all
// as an admin. The page only reads. Thread-safe.
#ifndef CAPSTAN_COORDINATOR_PAGE_SERVER_H_
#define CAPSTAN_COORDINATOR_PAGE_SERVER_H_

#include <memory>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "coordinator/coordinator.h"
#include "coordinator/page_json.h"
#include "services/endpoint/endpoint.h"
#include "services/http/http_server.h"
#include "services/http/readers.h"

namespace capstan::coordinator {

class PageServer {
 public:
  // `coordinator` is borrowed. What Readers::Create says.
  static absl::StatusOr<std::unique_ptr<PageServer>> Create(Coordinator& coordinator,
                                                            const services::Security& security);

  // Puts the page into `options`; this object outlives the server.
  void AddRoutes(services::HttpOptions& options);
  // Who may look at the page.
  services::Readers& readers() { return *readers_; }

 private:
  PageServer(Coordinator& coordinator, std::unique_ptr<services::Readers> readers);

  // `caller`: who looks, where that is granted.
  services::Readers::Access Check(const services::HttpRequest& request, core::Caller& caller);
  services::HttpResponse Page(const services::HttpRequest& request);
  services::HttpResponse Login(const services::HttpRequest& request);
  services::HttpResponse Overview();
  services::HttpResponse Job(const services::HttpRequest& request, const core::Caller& caller);
  PageHead Head() const;  // on the strand

  Coordinator& coordinator_;
  const absl::Duration started_;
  const std::unique_ptr<services::Readers> readers_;
};

}  // namespace capstan::coordinator

#endif  // CAPSTAN_COORDINATOR_PAGE_SERVER_H_
