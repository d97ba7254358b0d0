// How a person names a job: by its id, by a unique beginning of its id, or as @last.
#ifndef CAPSTAN_CLIENT_JOB_NAME_H_
#define CAPSTAN_CLIENT_JOB_NAME_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace capstan::client {

class JobClient;

inline constexpr absl::string_view kLastJob = "@last";  // the job submitted last

// Returns the one of `ids`, newest first, that equals `name` or begins with it. NotFound: there is
// none. InvalidArgument: several ids begin with `name`; the message lists them.
absl::StatusOr<std::string> MatchJob(absl::string_view name, const std::vector<std::string>& ids);

// Returns the id of the named job. @last is the newest job of our certificate's owner, or the
// newest of all if there is no owner. A name that matches no job is returned unchanged, and the
// next call reports it. NotFound: @last, and there is no job yet. InvalidArgument: several ids
// begin with `name`; the message lists them. Other errors are those of the calls.
absl::StatusOr<std::string> FindJob(JobClient& client, const std::string& name);

}  // namespace capstan::client

#endif  // CAPSTAN_CLIENT_JOB_NAME_H_
