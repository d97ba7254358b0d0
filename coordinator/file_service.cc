#include "coordinator/file_service.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "coordinator/stored_file.h"
#include "services/clock/clock.h"
#include "services/logging/log.h"
#include "services/security/credentials.h"
#include "services/status/status.h"
#include "training/codec/local_uri.h"

namespace capstan::coordinator {

using services::Log;

namespace {

constexpr size_t kMaxDataBytes = size_t{1} << 20;

absl::Status ShutsDown() { return absl::UnavailableError("the coordinator shuts down"); }

std::string FolderOfCheckpoint(const core::FileGrant& grant, int64_t lineage, int64_t step) {
  return absl::StrCat(grant.storage_path, "/", lineage, "-", step);
}

absl::StatusOr<IncomingFile::Announced> CheckHeader(const file::v1::UploadHeader& header,
                                                    const core::FileGrant& grant,
                                                    const std::vector<std::string>& roots) {
  if (!IsTensorFileName(header.name()) || header.sha256().size() != 32 || header.step() < 0 ||
      header.step() > grant.total_steps) {
    return absl::InvalidArgumentError(
        absl::StrCat("upload: name ", services::CutText(header.name(), 64), ", step ",
                     header.step(), ", ", header.sha256().size(), " bytes of hash: not possible"));
  }
  if (header.size_bytes() < 1 || header.size_bytes() > grant.max_file_bytes) {
    return absl::InvalidArgumentError(absl::StrCat("upload: ", header.name(), ": ",
                                                   header.size_bytes(), " bytes, want 1 to ",
                                                   grant.max_file_bytes));
  }
  const auto& names = grant.may_write;
  if (std::find(names.begin(), names.end(), header.name()) == names.end()) {
    return absl::PermissionDeniedError(absl::StrCat(
        "upload: ", header.name(), " may be written only by another process of the job"));
  }
  if (header.lineage() != grant.lineage) {
    return absl::FailedPreconditionError(absl::StrCat("upload: of lineage ", header.lineage(),
                                                      ", the job is in lineage ", grant.lineage));
  }
  if (header.step() <= grant.settled_step) {
    return absl::FailedPreconditionError(
        absl::StrCat("upload: the checkpoint of step ", header.step(), " is settled"));
  }
  return IncomingFile::Announced{FolderOfCheckpoint(grant, header.lineage(), header.step()), roots,
                                 header.name(), header.size_bytes(), header.sha256()};
}

absl::StatusOr<OutgoingFile::Wanted> CheckRequest(const file::v1::DownloadRequest& request,
                                                  const core::FileGrant& grant,
                                                  const FileServiceImpl::Roots& roots) {
  OutgoingFile::Wanted wanted;
  wanted.offset = request.offset();
  wanted.length_bytes = request.length_bytes();
  if (request.has_checkpoint_file()) {
    const file::v1::CheckpointFile& file = request.checkpoint_file();
    if ((file.name() != "manifest.json" && !IsTensorFileName(file.name())) || file.lineage() < 1 ||
        file.step() < 0) {
      return absl::InvalidArgumentError(absl::StrCat(
          "download: ", services::CutText(file.name(), 64), ": not a file of a checkpoint"));
    }
    wanted.path =
        absl::StrCat(FolderOfCheckpoint(grant, file.lineage(), file.step()), "/", file.name());
    wanted.roots = roots.checkpoints;
    return wanted;
  }
  if (!request.initial_weights() || grant.initial_weights.empty()) {
    return absl::InvalidArgumentError("download: names no file, or the job has no such file");
  }
  const absl::StatusOr<std::string> path = training::LocalPath(grant.initial_weights);
  if (!path.ok()) return path.status();
  wanted.path = *path;
  if (!request.name().empty()) {
    wanted.path = training::CheckpointFolderIn(*path);
    if (wanted.path.empty() ||
        (request.name() != "manifest.json" && !IsTensorFileName(request.name()))) {
      return absl::InvalidArgumentError(
          absl::StrCat("download: ", services::CutText(request.name(), 64),
                       ": not a file of the checkpoint that the job begins from"));
    }
    absl::StrAppend(&wanted.path, "/", request.name());
  }
  wanted.roots = roots.data;
  wanted.follow_link = true;
  return wanted;
}

}  // namespace

FileServiceImpl::FileServiceImpl(Coordinator& coordinator, FileKeys keys, Roots roots,
                                 absl::Duration header_patience)
    : coordinator_(coordinator),
      keys_(std::move(keys)),
      roots_(std::move(roots)),
      header_patience_(header_patience),
      calls_(coordinator, kMaxCalls) {}

absl::Status FileServiceImpl::Ask(const grpc::CallbackServerContext& context,
                                  const file::v1::Grant& grant, GrantFn done) {
  const absl::StatusOr<core::FileHolder> holder = keys_.Check(grant.job_id(), grant.key());
  if (!holder.ok()) return holder.status();
  const std::optional<services::Identity> caller = services::CallerOf(context);
  const services::Role want = holder->shard ? services::Role::kParamStore : services::Role::kWorker;
  if (caller.has_value() && caller->role != want) {
    return absl::PermissionDeniedError(
        absl::StrCat("role ", services::RoleName(caller->role), " may not use this key"));
  }
  coordinator_.PostRead([this, job_id = grant.job_id(), holder = *holder, done = std::move(done)] {
    if (coordinator_.draining()) return done(ShutsDown());
    done(coordinator_.core().GrantFiles(job_id, holder));
  });
  return absl::OkStatus();
}

// A call that begins with a grant.
template <typename Reactor>
class GrantedCall : public FileCallOn<Reactor> {
 public:
  GrantedCall(FileServiceImpl& service, grpc::CallbackServerContext* context)
      : FileCallOn<Reactor>(service.calls_, context), service_(service) {}

 protected:
  // Asks for the grant. If it is given and the call is not over, runs `granted` on the strand. An
  // error ends the call.
  void Ask(const file::v1::Grant& grant, std::function<void(const core::FileGrant&)> granted) {
    const absl::Status status =
        service_.Ask(*this->context_, grant,
                     [this, self = this->shared_from_this(),
                      granted = std::move(granted)](const absl::StatusOr<core::FileGrant>& given) {
                       if (this->over()) return;
                       given.ok() ? granted(*given) : this->End(given.status());
                     });
    if (!status.ok()) this->End(status);
  }

  FileServiceImpl& service_;
};

// ---- Look ----

class LookCall final : public GrantedCall<grpc::ServerWriteReactor<file::v1::LookResponse>> {
 public:
  LookCall(FileServiceImpl& service, grpc::CallbackServerContext* context,
           const file::v1::LookRequest& request)
      : GrantedCall(service, context), grant_(request.grant()) {}

  void Begin() override {
    Ask(grant_, [this](const core::FileGrant& grant) {
      if (!Admit("look", grant.storage_path)) return;
      WantAnswers();
      OnDisk([this, folder = grant.storage_path] { Show(folder); });
    });
  }
  // The file exists until the caller has seen it and cancels the call.
  void OnWriteDone(bool ok) override {
    if (TakeBack() && !ok) End(absl::CancelledError("look: the stream broke off"));
  }

 private:
  void Show(const std::string& folder) {
    auto made = LookFile::Make(folder, service_.roots_.checkpoints);
    Answered();
    if (!made.ok()) return End(made.status());
    const std::shared_ptr<LookFile> file = *std::move(made);
    Hold(file);
    response_.set_name(file->name());
    response_.set_nonce(file->nonce());
    if (GiveAway()) StartWrite(&response_);
  }

  const file::v1::Grant grant_;
  file::v1::LookResponse response_;
};

grpc::ServerWriteReactor<file::v1::LookResponse>* FileServiceImpl::Look(
    grpc::CallbackServerContext* context, const file::v1::LookRequest* request) {
  return calls_.Enter(std::make_shared<LookCall>(*this, context, *request));
}

// ---- Upload ----

// Each action starts when the one before is done: reading the header, the grant, the disk, the
// answer, reading a block, the disk, ... So no lock is needed.
class UploadCall final
    : public GrantedCall<
          grpc::ServerBidiReactor<file::v1::UploadRequest, file::v1::UploadResponse>> {
 public:
  using GrantedCall::GrantedCall;

  void Begin() override {
    Coordinator& coordinator = service_.coordinator_;
    coordinator.Post([&coordinator, patience = service_.header_patience_, weak = weak_from_this()] {
      coordinator.strand().CallAt(MonotonicNow() + patience, [weak, patience] {
        const std::shared_ptr<FileCall> self = weak.lock();
        if (self == nullptr) return;
        static_cast<UploadCall&>(*self).EndHeader(absl::DeadlineExceededError(
            absl::StrCat("upload: no header within ", absl::FormatDuration(patience))));
      });
    });
    if (GiveAway(Turn::kHeader)) StartRead(&request_);
  }
  void OnReadDone(bool ok) override {
    if (!TakeBack()) return;
    if (!ok) return End(absl::CancelledError("upload: the stream broke off"));
    if (file_ == nullptr) return OnHeader();
    if (!request_.has_data() || request_.data().empty() || request_.data().size() > kMaxDataBytes) {
      return End(absl::InvalidArgumentError("upload: no data, or more than 1 MiB at once"));
    }
    OnDisk([this] {
      if (absl::Status status = file_->Append(request_.data()); !status.ok()) return End(status);
      file_->done() ? Answer() : Read();
    });
  }
  void OnWriteDone(bool ok) override {
    if (!TakeBack()) return;
    if (!ok) return End(absl::CancelledError("upload: the stream broke off"));
    file_->done() ? End(absl::OkStatus()) : Read();
  }

 private:
  void OnHeader() {
    if (!request_.has_header()) {
      return End(absl::InvalidArgumentError("upload: the first message is not a header"));
    }
    Ask(request_.header().grant(), [this](const core::FileGrant& grant) { OnGrant(grant); });
  }
  void OnGrant(const core::FileGrant& grant) {
    const auto announced = CheckHeader(request_.header(), grant, service_.roots_.checkpoints);
    if (!announced.ok()) {
      Log(services::kWarning, "upload_refused")
          .Kv("job", request_.header().grant().job_id())
          .Kv("status", announced.status())
          .Limit("upload_refused");
      return End(announced.status());
    }
    if (!Admit("upload", grant.storage_path)) return;
    const std::string path = absl::StrCat(announced->folder, "/", announced->name);
    if (!Take(path)) {
      return End(absl::AbortedError(
          absl::StrCat("upload: another upload of ", path,
                       " is in progress; it is cancelled, and ends when its disk has answered")));
    }
    OnDisk([this, announced = *announced] {
      auto opened = IncomingFile::Open(announced);
      if (!opened.ok()) return End(opened.status());
      file_ = opened->get();
      Hold(std::shared_ptr<IncomingFile>(*std::move(opened)));
      Answer();
    });
  }
  void Read() {
    if (GiveAway()) StartRead(&request_);
  }
  void Answer() {
    response_.set_offset(file_->offset());
    response_.set_done(file_->done());
    if (GiveAway()) StartWrite(&response_);
  }

  file::v1::UploadRequest request_;
  file::v1::UploadResponse response_;
  IncomingFile* file_ = nullptr;  // owned by Hold
};

grpc::ServerBidiReactor<file::v1::UploadRequest, file::v1::UploadResponse>* FileServiceImpl::Upload(
    grpc::CallbackServerContext* context) {
  return calls_.Enter(std::make_shared<UploadCall>(*this, context));
}

// ---- Download ----

class DownloadCall final
    : public GrantedCall<grpc::ServerWriteReactor<file::v1::DownloadResponse>> {
 public:
  DownloadCall(FileServiceImpl& service, grpc::CallbackServerContext* context,
               const file::v1::DownloadRequest& request)
      : GrantedCall(service, context), request_(request) {}

  void Begin() override {
    Ask(request_.grant(), [this](const core::FileGrant& grant) {
      const auto wanted = CheckRequest(request_, grant, service_.roots_);
      if (!wanted.ok()) return End(wanted.status());
      if (!Admit("download", grant.storage_path)) return;
      WantAnswers();
      OnDisk([this, wanted = *wanted] {
        auto opened = OutgoingFile::Open(wanted);
        if (!opened.ok()) return End(opened.status());
        file_ = opened->get();
        Hold(std::shared_ptr<OutgoingFile>(*std::move(opened)));
        response_.set_size_bytes(file_->size_bytes());
        Send();
      });
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
  void Send() {
    const absl::Status status = file_->Next(*response_.mutable_data());
    if (!status.ok()) return End(status);
    Answered();
    if (GiveAway()) StartWrite(&response_);
  }

  const file::v1::DownloadRequest request_;
  file::v1::DownloadResponse response_;
  OutgoingFile* file_ = nullptr;  // owned by Hold
};

grpc::ServerWriteReactor<file::v1::DownloadResponse>* FileServiceImpl::Download(
    grpc::CallbackServerContext* context, const file::v1::DownloadRequest* request) {
  return calls_.Enter(std::make_shared<DownloadCall>(*this, context, *request));
}

// ---- AppendLog ----

class AppendCall final : public GrantedCall<grpc::ServerUnaryReactor> {
 public:
  AppendCall(FileServiceImpl& service, grpc::CallbackServerContext* context,
             const file::v1::AppendLogRequest& request, file::v1::AppendLogResponse* response)
      : GrantedCall(service, context), request_(request), response_(response) {}

  void Begin() override {
    const std::string& lines = request_.lines();
    const bool whole_lines =
        lines.size() <= kMaxDataBytes && (lines.empty() || lines.back() == '\n');
    if (!whole_lines || request_.offset() < -1) {
      return End(
          absl::InvalidArgumentError("metrics.jsonl: want whole lines, at most 1 MiB of them"));
    }
    Ask(request_.grant(), [this](const core::FileGrant& grant) {
      if (!grant.may_log) {
        return End(
            absl::PermissionDeniedError("metrics.jsonl may be written only by the job's lead"));
      }
      if (request_.lineage() != grant.lineage) {
        return End(absl::FailedPreconditionError(
            absl::StrCat("metrics.jsonl: of lineage ", request_.lineage(),
                         ", the job is in lineage ", grant.lineage)));
      }
      if (!Admit("log", grant.storage_path, /*in_order=*/true)) return;
      WantAnswers();
      OnDisk([this, path = grant.storage_path] {
        const absl::StatusOr<int64_t> size =
            AppendToLog(path, service_.roots_.checkpoints, request_.offset(), request_.lines());
        if (!size.ok()) return End(size.status());
        if (!TakeOver()) return;  // the response is gone once the call is over
        response_->set_size_bytes(*size);
        GiveStatus(grpc::Status::OK);
      });
    });
  }

 private:
  const file::v1::AppendLogRequest request_;  // a copy, because the work may outlive the call
  file::v1::AppendLogResponse* const response_;
};

grpc::ServerUnaryReactor* FileServiceImpl::AppendLog(grpc::CallbackServerContext* context,
                                                     const file::v1::AppendLogRequest* request,
                                                     file::v1::AppendLogResponse* response) {
  return calls_.Enter(std::make_shared<AppendCall>(*this, context, *request, response));
}

}  // namespace capstan::coordinator
