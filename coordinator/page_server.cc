#include "coordinator/page_server.h"

#include <algorithm>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/time/clock.h"
#include "coordinator/core/job_proto.h"
#include "coordinator/log_filter.h"
#include "coordinator/node_info.h"
#include "services/clock/clock.h"
#include "services/logging/log.h"

namespace capstan::embedded {
extern const std::string_view index_html;
extern const std::string_view login_html;
extern const std::string_view login_js;
extern const std::string_view page_css;
extern const std::string_view page_js;
extern const std::string_view icon_svg;
}  // namespace capstan::embedded

namespace capstan::coordinator {
namespace {

using services::HttpRequest;
using services::HttpResponse;
using Access = services::Readers::Access;

constexpr std::chrono::seconds kPatience(3);  // for a strand that may have ended
constexpr char kHtml[] = "text/html; charset=utf-8";

// Allows only the script and the style of the page. No text becomes markup or script.
constexpr char kJavaScript[] = "text/javascript; charset=utf-8";
constexpr char kPolicy[] =
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'; require-trusted-types-for "
    "'script'; trusted-types 'none'";

HttpResponse Answer(int code, absl::string_view body, const char* type) {
  HttpResponse response{.code = code, .body = std::string(body), .content_type = type};
  response.headers = {{"Content-Security-Policy", kPolicy},
                      {"X-Content-Type-Options", "nosniff"},
                      // With no-referrer, browsers send our own forms with "Origin: null".
                      {"Referrer-Policy", "same-origin"},
                      {"Cross-Origin-Opener-Policy", "same-origin"},
                      {"Cross-Origin-Resource-Policy", "same-origin"},
                      {"Cache-Control", "no-store"}};
  return response;
}

HttpResponse JsonAnswer(int code, absl::string_view body) {
  return Answer(code, body, "application/json");
}

HttpResponse Refusal(int code, absl::string_view why) {
  return JsonAnswer(code, absl::StrCat("{\"error\":\"", why, "\"}"));  // only fixed texts of ours
}

// `message` must be a fixed text of ours.
HttpResponse LoginForm(int code, absl::string_view message) {
  const std::string paragraph =
      message.empty() ? "" : absl::StrCat("<p class=\"error\" role=\"alert\">", message, "</p>");
  return Answer(code,
                absl::StrReplaceAll(
                    absl::string_view(embedded::login_html.data(), embedded::login_html.size()),
                    {{"@MESSAGE@", paragraph}}),
                kHtml);
}

HttpResponse SeeOther(const std::string& cookie) {
  HttpResponse response = Answer(303, "", "text/plain; charset=utf-8");
  response.headers.emplace_back("Location", "/");
  response.headers.emplace_back("Set-Cookie", cookie);
  return response;
}

std::string Cookie(const std::string& value, const HttpRequest& request, absl::string_view more) {
  return absl::StrCat(services::TokenCookieName(request.tls), "=", value,
                      "; Path=/; HttpOnly; SameSite=Strict", request.tls ? "; Secure" : "", more);
}

std::string Parameter(const HttpRequest& request, const std::string& name) {
  const auto it = request.parameters.find(name);
  return it == request.parameters.end() ? "" : it->second;
}

// Runs `read` on the core. Unavailable: the coordinator shuts down.
template <typename T>
absl::StatusOr<T> Ask(Coordinator& coordinator, std::function<absl::StatusOr<T>()> read) {
  const auto answer = std::make_shared<std::promise<absl::StatusOr<T>>>();
  std::future<absl::StatusOr<T>> future = answer->get_future();
  coordinator.PostRead([answer, read = std::move(read)] { answer->set_value(read()); });
  if (future.wait_for(kPatience) != std::future_status::ready) {
    return absl::UnavailableError("the coordinator shuts down");
  }
  return future.get();
}

HttpResponse ErrorAnswer(const absl::Status& status) {
  return absl::IsNotFound(status) ? Refusal(404, "no such job") : Refusal(503, "not available");
}

}  // namespace

PageServer::PageServer(Coordinator& coordinator, std::unique_ptr<services::Readers> readers)
    : coordinator_(coordinator), started_(MonotonicNow()), readers_(std::move(readers)) {}

absl::StatusOr<std::unique_ptr<PageServer>> PageServer::Create(Coordinator& coordinator,
                                                               const services::Security& security) {
  absl::StatusOr<std::unique_ptr<services::Readers>> readers = services::Readers::Create(security);
  if (!readers.ok()) return readers.status();
  return std::unique_ptr<PageServer>(new PageServer(coordinator, *std::move(readers)));
}

Access PageServer::Check(const HttpRequest& request, core::Caller& caller) {
  std::optional<services::Identity> who;
  const Access access = readers_->Check(request, &who);
  if (access == Access::kGranted && !who.has_value()) caller.any_job = true;  // no sign-in needed
  if (who.has_value()) caller = {who->name, who->role == services::Role::kAdmin};
  return access;
}

void PageServer::AddRoutes(services::HttpOptions& options) {
  options.routes["/"] = [this](const HttpRequest& request) { return Page(request); };
  // The login form needs it, too, and it has nothing about the cluster.
  options.routes["/page.css"] = [](const HttpRequest&) {
    return Answer(200, {embedded::page_css.data(), embedded::page_css.size()},
                  "text/css; charset=utf-8");
  };
  options.routes["/icon.svg"] = [](const HttpRequest&) {
    return Answer(200, {embedded::icon_svg.data(), embedded::icon_svg.size()}, "image/svg+xml");
  };
  options.routes["/login.js"] = [](const HttpRequest&) {
    return Answer(200, {embedded::login_js.data(), embedded::login_js.size()}, kJavaScript);
  };
  using Handler = std::function<HttpResponse(const HttpRequest&, const core::Caller&)>;
  const auto guarded = [this](Handler handler) {
    return [this, handler = std::move(handler)](const HttpRequest& request) {
      core::Caller caller;
      const Access access = Check(request, caller);
      if (access == Access::kClosed) return Refusal(403, "start it with --tokens");
      if (access != Access::kGranted) return Refusal(401, "a token is needed");
      return handler(request, caller);
    };
  };
  options.routes["/page.js"] = guarded([](const HttpRequest&, const core::Caller&) {
    return Answer(200, {embedded::page_js.data(), embedded::page_js.size()}, kJavaScript);
  });
  options.routes["/api/overview"] =
      guarded([this](const HttpRequest&, const core::Caller&) { return Overview(); });
  options.routes["/api/job"] =
      guarded([this](const HttpRequest& request, const core::Caller& caller) {
        return Job(request, caller);
      });
  options.posts["/login"] = [this](const HttpRequest& request) { return Login(request); };
  options.posts["/logout"] = [](const HttpRequest& request) {
    return SeeOther(Cookie("", request, "; Max-Age=0"));
  };
}

HttpResponse PageServer::Page(const HttpRequest& request) {
  switch (readers_->Check(request)) {
    case Access::kGranted:
      return Answer(200, {embedded::index_html.data(), embedded::index_html.size()}, kHtml);
    case Access::kClosed:
      return Answer(403,
                    "The status page needs a list of readers: start the coordinator with "
                    "--tokens tokens.json, or with --insecure.\n",
                    "text/plain; charset=utf-8");
    case Access::kNoToken:
      return LoginForm(401, "");
    case Access::kWrongToken:
      break;
  }
  return LoginForm(401, "This token is not valid here, or is no longer valid.");
}

HttpResponse PageServer::Login(const HttpRequest& request) {
  if (!readers_->has_tokens()) return Page(request);
  const std::string token(absl::StripAsciiWhitespace(Parameter(request, "token")));
  if (token.empty() || !readers_->Find(token).has_value()) {
    services::Log(services::kWarning, "page_login_refused").Limit("all", absl::Seconds(1));
    return LoginForm(401, "This token is not valid here, or is no longer valid.");
  }
  return SeeOther(Cookie(token, request, ""));
}

PageHead PageServer::Head() const {
  const absl::Duration now = MonotonicNow();
  return {absl::Now(), DescribeCluster(coordinator_.core(), started_, now),
          !readers_->has_tokens()};
}

HttpResponse PageServer::Overview() {
  const absl::StatusOr<OverviewPage> page =
      Ask<OverviewPage>(coordinator_, [this]() -> absl::StatusOr<OverviewPage> {
        OverviewPage page{Head(), coordinator_.core().ListJobs(kPageJobs, {}), {}};
        const absl::Duration now = MonotonicNow();
        for (const auto& entry : coordinator_.core().nodes().all()) {
          if (page.nodes.size() == kPageNodes) break;
          page.nodes.push_back(DescribeNode(entry.second, now));
        }
        return page;
      });
  return page.ok() ? JsonAnswer(200, OverviewJson(*page)) : ErrorAnswer(page.status());
}

HttpResponse PageServer::Job(const HttpRequest& request, const core::Caller& caller) {
  int points = kPagePoints;
  if (const std::string text = Parameter(request, "points"); !text.empty()) {
    if (!absl::SimpleAtoi(text, &points) || points < 1)
      return Refusal(400, "points: want 1 or more");
    points = std::min(points, kPagePoints);
  }
  const std::string id = Parameter(request, "id");
  const absl::StatusOr<JobPage> page =
      Ask<JobPage>(coordinator_, [this, id, points, caller]() -> absl::StatusOr<JobPage> {
        const core::CoordinatorCore& core = coordinator_.core();
        const core::Job* const job = core.Peek(id);
        if (job == nullptr) return absl::NotFoundError("no such job");
        JobPage page{.head = Head(), .job = core::ToProto(*job, /*with_history=*/true)};
        const absl::Duration now = MonotonicNow();
        for (const std::string& name : job->NodesOfTasks()) {
          const core::Node* const node = core.nodes().Find(name);
          if (node != nullptr) page.nodes.push_back(DescribeNode(*node, now));
        }
        page.log_is_shown = core::CheckOwner(*job, caller).ok();
        for (int64_t n = std::max(job->logs().dropped(), job->logs().next() - kPageLogLines);
             page.log_is_shown && n < job->logs().next(); ++n) {
          page.log.push_back(*job->logs().Find(n));
        }
        std::stable_sort(page.log.begin(), page.log.end(), IsEarlier);
        page.points = job->history().metrics().Thinned(points);
        return page;
      });
  return page.ok() ? JsonAnswer(200, JobPageJson(*page)) : ErrorAnswer(page.status());
}

}  // namespace capstan::coordinator
