#include "client/job_name.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/job_client.h"

namespace capstan::client {
namespace {

constexpr size_t kNamedCandidates = 10;
constexpr int kJobsPerPage = 1000;

absl::StatusOr<std::vector<std::string>> AllJobIds(JobClient& client) {
  std::vector<std::string> ids;
  job::v1::ListJobsRequest request;
  request.set_limit(kJobsPerPage);
  do {
    const auto page = client.Call(&JobClient::Stub::ListJobs, request);
    if (!page.ok()) return page.status();
    for (const job::v1::Job& job : page->jobs()) ids.push_back(job.job_id());
    request.set_page_token(page->next_page_token());
  } while (!request.page_token().empty());
  return ids;
}

}  // namespace

absl::StatusOr<std::string> MatchJob(absl::string_view name, const std::vector<std::string>& ids) {
  std::vector<std::string> found;
  for (const std::string& id : ids) {
    if (id == name) return id;
    if (!name.empty() && absl::StartsWith(id, name)) found.push_back(id);
  }
  if (found.empty()) return absl::NotFoundError(absl::StrCat("no job ", name));
  if (found.size() == 1) return found[0];
  const size_t more = found.size() - std::min(found.size(), kNamedCandidates);
  found.resize(found.size() - more);
  return absl::InvalidArgumentError(
      absl::StrCat("several jobs begin with '", name, "': ", absl::StrJoin(found, ", "),
                   more == 0 ? "" : absl::StrCat(" and ", more, " more")));
}

absl::StatusOr<std::string> FindJob(JobClient& client, const std::string& name) {
  if (name == kLastJob) {
    job::v1::ListJobsRequest request;
    request.set_limit(1);
    request.set_owner(client.owner());
    const auto jobs = client.ListJobs(request);
    if (!jobs.ok()) return jobs.status();
    if (!jobs->empty()) return jobs->front().job_id();
    return absl::NotFoundError(
        absl::StrCat("@last: ", client.owner().empty() ? "there is no job" : "there is no job of ",
                     client.owner()));
  }
  if (!absl::IsNotFound(client.Get(name).status())) return name;
  const auto ids = AllJobIds(client);
  if (!ids.ok()) return ids.status();
  absl::StatusOr<std::string> id = MatchJob(name, *ids);
  return absl::IsNotFound(id.status()) ? name : std::move(id);
}

}  // namespace capstan::client
