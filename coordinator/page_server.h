// The status page on the coordinator's HTTP port: /, its style, scripts and icon, /login, /logout,
// and the data for the script, /api/overview and /api/job.
//
// The page is open to everybody with a client's or an admin's token in tokens.json, sent by the
// form (then kept in a cookie) or as `Authorization: Bearer`. With --insecure and no --tokens it is
// open to anybody. With neither it is open to nobody. As over gRPC, everybody who may look sees all
// jobs, but only the log lines of their own jobs; an admin sees all log lines. The page only reads.
// Thread-safe.
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
  // Borrows `coordinator`. Returns the errors of Readers::Create.
  static absl::StatusOr<std::unique_ptr<PageServer>> Create(Coordinator& coordinator,
                                                            const services::Security& security);

  // Adds the page to `options`. This object must outlive the server.
  void AddRoutes(services::HttpOptions& options);
  // Decides who may look at the page.
  services::Readers& readers() { return *readers_; }

 private:
  PageServer(Coordinator& coordinator, std::unique_ptr<services::Readers> readers);

  // Sets `caller` if access is granted.
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
