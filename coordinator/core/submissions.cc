#include "coordinator/core/submissions.h"

#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "google/protobuf/io/coded_stream.h"
#include "google/protobuf/io/zero_copy_stream_impl_lite.h"

namespace capstan::coordinator::core {
namespace {

constexpr size_t kMaxRequestIdBytes = 128;
// Equal specs give equal bytes, whatever the order of their labels.
std::string DeterministicBytes(const job::v1::JobSpec& spec) {
  std::string bytes;
  {
    google::protobuf::io::StringOutputStream stream(&bytes);
    google::protobuf::io::CodedOutputStream coded(&stream);
    coded.SetSerializationDeterministic(true);
    spec.SerializeToCodedStream(&coded);
  }
  return bytes;
}
absl::Status CheckRequestId(const std::string& id) {
  const bool good = !id.empty() && id.size() <= kMaxRequestIdBytes &&
                    std::all_of(id.begin(), id.end(), [](unsigned char c) {
                      return absl::ascii_isalnum(c) || c == '-' || c == '_';
                    });
  if (good) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("request_id: want 1 to ", kMaxRequestIdBytes,
                                                 " of [A-Za-z0-9_-], got ", id.size(), " bytes"));
}

}  // namespace

void Submissions::Handle(const Submit& submit) {
  job::v1::SubmitJobResponse response;
  const absl::Status status = Admit(submit, &response);
  Reply reply{submit.call, status, {}};
  if (status.ok()) reply.response = std::move(response);
  ctx_.Emit(std::move(reply));
}

absl::Status Submissions::Admit(const Submit& submit, job::v1::SubmitJobResponse* response) {
  absl::Status status = CheckRequestId(submit.request_id);
  if (!status.ok()) return status;
  const int64_t size = static_cast<int64_t>(submit.spec.ByteSizeLong());
  if (size > ctx_.options().max_spec_bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("spec: ", size, " bytes, at most ", ctx_.options().max_spec_bytes));
  }
  std::string bytes = DeterministicBytes(submit.spec);
  if (const Job* const known = ctx_.jobs().OfRequest(submit.request_id); known != nullptr) {
    if (known->owner() != submit.caller.name) {
      return absl::AlreadyExistsError(
          absl::StrCat("request_id ", submit.request_id, ": used by somebody else"));
    }
    if (known->spec_bytes() != bytes) {
      return absl::AlreadyExistsError(absl::StrCat("request_id ", submit.request_id, ": job ",
                                                   known->id(), " has another spec"));
    }
    response->set_job_id(known->id());
    response->set_existed(true);
    return absl::OkStatus();
  }
  if (!ctx_.options().only_job.empty() && !ctx_.jobs().empty()) {
    return absl::FailedPreconditionError(
        absl::StrCat("this coordinator takes job ", ctx_.options().only_job, " alone"));
  }
  status = ctx_.options().validate(submit.spec);
  if (!status.ok()) return status;
  // It becomes part of a path, and an argument of commands.
  if (!IsName(submit.spec.name()) || submit.spec.name()[0] == '-') {
    return absl::InvalidArgumentError("name: want [a-z0-9][a-z0-9-]{0,62}");
  }
  if (const std::string& path = submit.spec.checkpoint().storage_path(); !path.empty()) {
    const std::string whose = folders_.JobWhoseFolderHolds(folders_.StorageRoot(submit.spec));
    if (!whose.empty()) {
      return absl::InvalidArgumentError(absl::StrCat("checkpoint.storage_path: ", path,
                                                     " lies in the folder of job ", whose,
                                                     "; choose another one"));
    }
  }
  status = folders_.CheckInitialWeights(submit);
  if (!status.ok()) return status;
  const size_t queued = ctx_.jobs().size() - ctx_.jobs().ended().size();
  if (queued >= static_cast<size_t>(ctx_.options().max_queued_jobs)) {
    return absl::ResourceExhaustedError(
        absl::StrCat(ctx_.options().max_queued_jobs, " queued jobs is the limit"));
  }

  Submission what;
  what.id = NewJobId(submit.spec.name());
  what.sequence = ++ctx_.last().sequence;
  what.request_id = submit.request_id;
  what.owner = submit.caller.name;
  what.spec = submit.spec;
  what.spec_bytes = std::move(bytes);
  Job& job = ctx_.jobs().Add(std::make_unique<Job>(std::move(what), ctx_.options()));
  job.standing().NoteSubmitted(ctx_.wall());
  job.standing().Set(common::v1::JOB_STATE_PENDING, "WaitingForSlots", "");
  ctx_.WatchLog(job);
  ctx_.jobs().Queue(job);
  response->set_job_id(job.id());
  job.AddEvent(ctx_.wall(), "Submitted", "");
  ctx_.Changed(job);
  submitted_ = &job;
  return absl::OkStatus();
}

std::string Submissions::NewJobId(const std::string& name) {
  if (!ctx_.options().only_job.empty()) return ctx_.options().only_job;
  static constexpr char kLetters[] = "abcdefghijklmnopqrstuvwxyz0123456789";
  // With so many letters no id comes again: the folder of a forgotten job still has a result that a person may want.
  constexpr int kRandomLetters = 6;
  for (;;) {
    // Begins with a letter: no folder of a job looks like a checkpoint, `<lineage>-<step>`.
    std::string id = absl::StrCat(absl::ascii_islower(name[0]) ? "" : "job-", name, "-");
    for (int i = 0; i < kRandomLetters; ++i) id.push_back(kLetters[random_() % 36]);
    if (ctx_.jobs().Find(id) == nullptr) return id;
  }
}

void Submissions::Handle(const Cancel& cancel) {
  Job* job = ctx_.jobs().Find(cancel.job_id);
  if (job == nullptr) {
    ctx_.Emit(Reply{cancel.call, absl::NotFoundError(absl::StrCat("no job ", cancel.job_id)), {}});
    return;
  }
  if (absl::Status status = CheckOwner(*job, cancel.caller); !status.ok()) {
    ctx_.Emit(Reply{cancel.call, std::move(status), {}});
    return;
  }
  if (!job->ended() && !job->cancel_asked()) {
    job->standing().AskCancel(ctx_.now());
    job->AddEvent(ctx_.wall(), "CancelRequested", "");
    job->waiting().SayNothing();
    ctx_.Changed(*job);
    run_.Advance(*job);
  }
  job::v1::CancelJobResponse response;
  response.set_state(job->state());
  ctx_.Emit(Reply{cancel.call, absl::OkStatus(), std::move(response)});
}

}  // namespace capstan::coordinator::core
