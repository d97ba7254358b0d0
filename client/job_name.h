// How a person names a job: its id, the beginning of one id alone, or @last.
#ifndef CAPSTAN_CLIENT_JOB_NAME_H_
#define CAPSTAN_CLIENT_JOB_NAME_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace capstan::client {

class JobClient;

inline constexpr absl::string_view kLastJob = "@last";  // the job that was submitted last

// The one of `ids`, newest first, that begins with `name`, or is `name`. NotFound: none.
// InvalidArgument: several begin so; names them.
absl::StatusOr<std::string> MatchJob(absl::string_view name, const std::vector<std::string>& ids);

// The id of the job that is named. @last is the newest of the owner of our certificate, or of all
// where there is none. A name that is no job's is given back as it is: the next call says so.
// NotFound: @last, and there is no job yet. InvalidArgument: several jobs begin so; names them.
// Other errors are those of the calls.
absl::StatusOr<std::string> FindJob(JobClient& client, const std::string& name);

}  // namespace capstan::client

#endif  // CAPSTAN_CLIENT_JOB_NAME_H_
