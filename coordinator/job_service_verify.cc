// JobService.VerifyCheckpoint reads a checkpoint's files again. A FileCall, since the disk may
// hang.
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "coordinator/caller.h"
#include "coordinator/checkpoint_check.h"
#include "coordinator/job_service.h"
#include "coordinator/mounts.h"

namespace capstan::coordinator {
namespace {

// The coordinator's record of the checkpoint, if the caller may have it read.
absl::StatusOr<job::v1::SavedCheckpoint> FindOnRecord(
    const core::CoordinatorCore& core, const job::v1::VerifyCheckpointRequest& request,
    const core::Caller& caller) {
  const core::Job* const job = core.Peek(request.job_id());
  if (job == nullptr) return absl::NotFoundError(absl::StrCat("no job ", request.job_id()));
  if (absl::Status status = CheckOwner(*job, caller); !status.ok()) return status;
  if (request.checkpoint().empty()) {
    std::vector<job::v1::SavedCheckpoint> all = job->SavedCheckpoints();
    if (all.empty()) {
      return absl::NotFoundError(absl::StrCat("job ", job->id(), " has no checkpoint"));
    }
    return std::move(all.front());
  }
  std::optional<job::v1::SavedCheckpoint> found = job->FindCheckpoint(request.checkpoint());
  if (!found.has_value()) return core::NoCheckpoint(*job, request.checkpoint());
  return *std::move(found);
}

}  // namespace

// Each block is a piece of work, so the patience with the disk begins anew with each. The pieces of
// all verifications of a disk run one after the other on one thread, because hashing must not use
// more.
class VerifyCall final : public FileCallOn<grpc::ServerUnaryReactor> {
 public:
  VerifyCall(JobServiceImpl& service, grpc::CallbackServerContext* context,
             const job::v1::VerifyCheckpointRequest& request,
             job::v1::VerifyCheckpointResponse* response)
      : FileCallOn(service.calls_, context),
        service_(service),
        request_(request),
        response_(response) {}

  void Begin() override {
    service_.coordinator_.PostRead([this, self = shared_from_this(), caller = CallerFrom(*context_),
                                    disks = MountPointsAnd(service_.policy_.checkpoint_roots())] {
      if (!over()) Find(caller, disks);
    });
  }

 private:
  void Find(const core::Caller& caller, const std::vector<std::string>& disks) {
    Coordinator& coordinator = service_.coordinator_;
    if (coordinator.draining()) {
      return End(absl::UnavailableError("the coordinator shuts down"));
    }
    absl::StatusOr<job::v1::SavedCheckpoint> found =
        FindOnRecord(coordinator.core(), request_, caller);
    if (!found.ok()) return End(found.status());
    saved_ = *std::move(found);
    const std::string disk = LongestAbove(absl::StripPrefix(saved_.uri(), "file://"), disks);
    if (!Admit("verify", disk, /*in_order=*/true)) return;
    WantAnswers();
    const auto check = std::make_shared<CheckpointCheck>(saved_);
    check_ = check.get();
    Hold(check);
    OnDisk([this] { Read(); });
  }
  void Read() {
    if (absl::Status status = check_->Next(); !status.ok()) return End(status);
    if (!check_->done()) return OnDisk([this] { Read(); });
    if (!TakeOver()) return;  // the response is gone once the call is over
    *response_->mutable_checkpoint() = std::move(saved_);
    GiveStatus(grpc::Status::OK);
  }

  JobServiceImpl& service_;
  const job::v1::VerifyCheckpointRequest request_;  // a copy, because the work may outlive the call
  job::v1::VerifyCheckpointResponse* const response_;
  job::v1::SavedCheckpoint saved_;
  CheckpointCheck* check_ = nullptr;  // owned by Hold
};

grpc::ServerUnaryReactor* JobServiceImpl::VerifyCheckpoint(
    grpc::CallbackServerContext* context, const job::v1::VerifyCheckpointRequest* request,
    job::v1::VerifyCheckpointResponse* response) {
  return calls_.Enter(std::make_shared<VerifyCall>(*this, context, *request, response));
}

}  // namespace capstan::coordinator
