#include "coordinator/checkpoint_service.h"

#include <algorithm>
#include <iterator>
#include <memory>
#include <optional>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "coordinator/caller.h"
#include "coordinator/job_service.h"
#include "coordinator/mounts.h"
#include "coordinator/stored_file.h"
#include "services/files/files.h"
#include "services/status/status.h"

namespace capstan::coordinator {

using services::ToGrpcStatus;

namespace {

constexpr size_t kMaxShownName = 64;  // bytes shown of an unknown file name
constexpr char kManifestFile[] = "manifest.json";

// The job's folder, if the checkpoint has such a file and the caller may read it.
absl::StatusOr<std::string> FindFile(const core::CoordinatorCore& core,
                                     const job::v1::DownloadCheckpointRequest& request,
                                     const core::Caller& caller) {
  const core::Job* const job = core.Peek(request.job_id());
  if (job == nullptr) return absl::NotFoundError(absl::StrCat("no job ", request.job_id()));
  if (absl::Status status = CheckOwner(*job, caller); !status.ok()) return status;
  const std::optional<job::v1::SavedCheckpoint> found = job->FindCheckpoint(request.checkpoint());
  if (!found.has_value()) return core::NoCheckpoint(*job, request.checkpoint());
  const auto& files = found->files();
  const bool has = request.name() == kManifestFile ||
                   std::any_of(files.begin(), files.end(), [&](const common::v1::FileInfo& file) {
                     return file.name() == request.name();
                   });
  if (!has) {
    return absl::NotFoundError(absl::StrCat("checkpoint ", request.checkpoint(), " of job ",
                                            job->id(), " has no file ",
                                            services::CutText(request.name(), kMaxShownName)));
  }
  const absl::string_view folder = absl::StripPrefix(found->uri(), "file://");
  return std::string(folder.substr(0, folder.rfind('/')));
}

}  // namespace

// Each action starts when the one before is done, so no lock is needed.
class CheckpointDownload final
    : public FileCallOn<grpc::ServerWriteReactor<job::v1::DownloadCheckpointResponse>> {
 public:
  CheckpointDownload(CheckpointServiceImpl& service, grpc::CallbackServerContext* context,
                     const job::v1::DownloadCheckpointRequest& request)
      : FileCallOn(service.calls_, context), service_(service), request_(request) {}

  void Begin() override {
    if (absl::Status status = CheckJobId(request_.job_id()); !status.ok()) return End(status);
    service_.coordinator_.PostRead([this, self = shared_from_this(), caller = CallerFrom(*context_),
                                    disks = MountPointsAnd(service_.roots_)] {
      if (!over()) Find(caller, disks);
    });
  }
  void OnWriteDone(bool ok) override {
    if (!TakeBack()) return;
    if (!ok) return End(absl::CancelledError("download: the stream broke off"));
    if (file_->at_end()) return End(absl::OkStatus());
    response_.set_size_bytes(0);
    OnDisk([this] { Send(); });
  }

 private:
  void Find(const core::Caller& caller, const std::vector<std::string>& disks) {
    Coordinator& coordinator = service_.coordinator_;
    if (coordinator.draining()) {
      return End(absl::UnavailableError("the coordinator shuts down"));
    }
    const absl::StatusOr<std::string> folder = FindFile(coordinator.core(), request_, caller);
    if (!folder.ok()) return End(folder.status());
    // Requests for other jobs were refused above and do not count.
    if (absl::Status status = service_.Count(request_.job_id(), weak_from_this()); !status.ok()) {
      return End(status);
    }
    if (!Admit("download", LongestAbove(*folder, disks))) return;
    WantAnswers();
    OnDisk([this, folder = *folder] {
      // No link may lead out of the folder, and the file must not be a link.
      auto opened = OutgoingFile::Open(
          {.path = absl::StrCat(folder, "/", request_.checkpoint(), "/", request_.name()),
           .roots = {folder},
           .offset = request_.offset(),
           .length_bytes = request_.length_bytes()});
      if (!opened.ok()) return End(opened.status());
      file_ = opened->get();
      Hold(std::shared_ptr<OutgoingFile>(*std::move(opened)));
      response_.set_size_bytes(file_->size_bytes());
      Send();
    });
  }
  void Send() {
    const absl::Status status = file_->Next(*response_.mutable_data());
    if (!status.ok()) return End(status);
    Answered();
    if (GiveAway()) StartWrite(&response_);
  }

  CheckpointServiceImpl& service_;
  const job::v1::DownloadCheckpointRequest request_;
  job::v1::DownloadCheckpointResponse response_;
  OutgoingFile* file_ = nullptr;  // owned by Hold
};

absl::Status CheckpointServiceImpl::Count(const std::string& job_id, std::weak_ptr<FileCall> call) {
  for (auto job = downloads_.begin(); job != downloads_.end();) {
    auto& calls = job->second;
    calls.erase(std::remove_if(calls.begin(), calls.end(),
                               [](const std::weak_ptr<FileCall>& weak) {
                                 const std::shared_ptr<FileCall> known = weak.lock();
                                 return known == nullptr || known->over();
                               }),
                calls.end());
    job = calls.empty() ? downloads_.erase(job) : std::next(job);
  }
  auto& calls = downloads_[job_id];
  if (calls.size() >= kMostOfJob) {
    return absl::ResourceExhaustedError(
        absl::StrCat(kMostOfJob, " downloads of checkpoints of job ", job_id, " are under way"));
  }
  calls.push_back(std::move(call));
  return absl::OkStatus();
}

grpc::ServerWriteReactor<job::v1::DownloadCheckpointResponse>*
CheckpointServiceImpl::DownloadCheckpoint(grpc::CallbackServerContext* context,
                                          const job::v1::DownloadCheckpointRequest* request) {
  return calls_.Enter(std::make_shared<CheckpointDownload>(*this, context, *request));
}

grpc::ServerUnaryReactor* CheckpointServiceImpl::DeleteCheckpoint(
    grpc::CallbackServerContext* context, const job::v1::DeleteCheckpointRequest* request,
    job::v1::DeleteCheckpointResponse* response) {
  grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
  if (absl::Status status = CheckJobId(request->job_id()); !status.ok()) {
    reactor->Finish(ToGrpcStatus(status));
    return reactor;
  }
  // The deletion is carried out even if the caller has left.
  coordinator_.Post([this, context, request, response, reactor] {
    if (coordinator_.draining()) {
      reactor->Finish(ToGrpcStatus(absl::UnavailableError("the coordinator shuts down")));
      return;
    }
    coordinator_.Control(
        *request, CallerFrom(*context), [response, reactor](const core::Reply& reply) {
          if (reply.status.ok()) {
            *response = std::get<job::v1::DeleteCheckpointResponse>(reply.response);
          }
          reactor->Finish(ToGrpcStatus(reply.status));
        });
  });
  return reactor;
}

}  // namespace capstan::coordinator
