#include "param_store/files/job_files.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "capstan/file/v1/file.grpc.pb.h"
#include "grpcpp/grpcpp.h"
#include "services/channel/channel.h"
#include "services/clock/clock.h"
#include "services/files/files.h"
#include "services/logging/log.h"
#include "services/status/status.h"
#include "training/codec/sha256.h"

namespace capstan::param_store {
namespace {

using services::Log;

constexpr size_t kBlockBytes = size_t{512} << 10;
constexpr size_t kLogBlockBytes = size_t{512} << 10;
constexpr int64_t kMaxNonceBytes = 1024;
constexpr absl::Duration kLookTimeout = absl::Seconds(10);
constexpr absl::Duration kLogTimeout = absl::Seconds(5);
constexpr absl::Duration kTransferTimeout = absl::Minutes(1);
constexpr double kSlowestBytesPerSecond =
    1 << 20;  // a slower transfer is cut and resumed where it stopped
constexpr absl::Duration kMinBackoff = absl::Milliseconds(100);
constexpr absl::Duration kMaxBackoff = absl::Seconds(2);

// Errors that may pass: of a network, of a restarting coordinator, of a lapsed lease.
bool MayPass(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kAborted:
    case absl::StatusCode::kCancelled:
    case absl::StatusCode::kDeadlineExceeded:
    case absl::StatusCode::kUnauthenticated:
    case absl::StatusCode::kUnknown:
    case absl::StatusCode::kInternal:
      return true;
    default:
      return false;
  }
}

absl::Duration TransferTimeout(int64_t bytes) {
  return kTransferTimeout + absl::Seconds(static_cast<double>(bytes) / kSlowestBytesPerSecond);
}

// Appends to `out` the bytes of `parts` from `offset` on, at most kBlockBytes.
void CopyBlock(absl::Span<const absl::string_view> parts, int64_t offset, std::string& out) {
  int64_t begin = 0;  // of the part
  for (const absl::string_view part : parts) {
    const int64_t end = begin + static_cast<int64_t>(part.size());
    if (end > offset && out.size() < kBlockBytes) {
      const absl::string_view rest = part.substr(static_cast<size_t>(offset - begin));
      const absl::string_view taken = rest.substr(0, kBlockBytes - out.size());
      out.append(taken.data(), taken.size());
      offset += static_cast<int64_t>(taken.size());
    }
    if (out.size() >= kBlockBytes) return;
    begin = end;
  }
}

}  // namespace

struct JobFiles::Rpc {
  explicit Rpc(const JobFilesOptions& options)
      : stub(options.channel == nullptr ? nullptr
                                        : file::v1::FileService::NewStub(options.channel)) {}
  const std::unique_ptr<file::v1::FileService::Stub> stub;
};

template <typename Grant>
void JobFiles::Show(Grant& grant) const {
  grant.set_job_id(options_.job_id);
  MutexLock lock(mu_);
  grant.set_key(key_);
}

// A call that Cancel can end.
class JobFiles::Call {
 public:
  Call(JobFiles& files, absl::Duration timeout) : files_(files) {
    services::SetTimeout(context_, timeout);
    MutexLock lock(files_.mu_);
    if (files_.cancelled_) context_.TryCancel();
    files_.calls_.insert(&context_);
  }
  ~Call() {
    MutexLock lock(files_.mu_);
    files_.calls_.erase(&context_);
  }
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;
  grpc::ClientContext& context() { return context_; }

 private:
  JobFiles& files_;
  grpc::ClientContext context_;
};

// Reads by one stream at a time, which begins where the file is read next.
class JobFiles::RemoteFile final : public InputFile {
 public:
  RemoteFile(JobFiles& files, file::v1::DownloadRequest request, std::string name)
      : files_(files), request_(std::move(request)), name_(std::move(name)) {}
  ~RemoteFile() override { Close(); }

  absl::Status Open() {
    return files_.Retry(absl::InfiniteDuration(), "download",
                        [this](bool*) { return Begin(/*offset=*/0); });
  }
  int64_t size_bytes() const override { return size_bytes_; }
  absl::Status ReadAt(int64_t offset, char* out, int64_t size_bytes) override {
    if (offset < 0 || size_bytes > size_bytes_ - offset) {
      return absl::DataLossError(absl::StrCat(name_, ": ends at offset ", size_bytes_));
    }
    return files_.Retry(absl::InfiniteDuration(), "download", [&](bool* progress) {
      while (size_bytes > 0) {
        if (reader_ == nullptr || offset != at_) {
          if (absl::Status status = Begin(offset); !status.ok()) return status;
        }
        if (block_used_ == block_.data().size()) {
          if (absl::Status status = NextBlock(); !status.ok()) return status;
          continue;
        }
        const int64_t taken =
            std::min(size_bytes, static_cast<int64_t>(block_.data().size() - block_used_));
        std::memcpy(out, block_.data().data() + block_used_, static_cast<size_t>(taken));
        block_used_ += static_cast<size_t>(taken);
        at_ += taken;
        offset += taken;
        out += taken;
        size_bytes -= taken;
        *progress = true;
      }
      return absl::OkStatus();
    });
  }

 private:
  absl::Status Begin(int64_t offset) {
    Close();
    request_.set_offset(offset);
    files_.Show(*request_.mutable_grant());
    call_ = std::make_unique<Call>(files_, TransferTimeout(size_bytes_ - offset));
    reader_ = files_.rpc_->stub->Download(&call_->context(), request_);
    at_ = offset;
    if (absl::Status status = NextBlock(); !status.ok()) return status;
    if (size_bytes_ > 0 && block_.size_bytes() != size_bytes_) {
      Close();
      return absl::DataLossError(absl::StrCat(name_, ": changed while it was read"));
    }
    size_bytes_ = block_.size_bytes();
    return absl::OkStatus();
  }
  absl::Status NextBlock() {
    block_.Clear();
    block_used_ = 0;
    if (reader_->Read(&block_)) return absl::OkStatus();
    const absl::Status status = services::FromGrpcStatus(reader_->Finish());
    reader_.reset();
    call_.reset();
    return status.ok() ? absl::DataLossError(absl::StrCat(name_, ": ends at offset ", at_))
                       : status;
  }
  void Close() {
    if (reader_ != nullptr) {
      call_->context().TryCancel();
      (void)reader_->Finish();
    }
    reader_.reset();
    call_.reset();
    block_.Clear();
    block_used_ = 0;
  }

  JobFiles& files_;
  file::v1::DownloadRequest request_;
  const std::string name_;
  int64_t size_bytes_ = 0;
  int64_t at_ = 0;  // offset of the next byte in the block
  std::unique_ptr<Call> call_;
  std::unique_ptr<grpc::ClientReader<file::v1::DownloadResponse>> reader_;
  file::v1::DownloadResponse block_;
  size_t block_used_ = 0;
};

JobFiles::JobFiles(JobFilesOptions options)
    : options_(std::move(options)), rpc_(std::make_unique<Rpc>(options_)) {
  MutexLock lock(mu_);
  key_ = options_.key;
}

JobFiles::~JobFiles() = default;

void JobFiles::SetKey(const std::string& key) {
  if (key.empty() || !MayAsk()) return;
  MutexLock lock(mu_);
  key_ = key;
  changed_.NotifyAll();
}

job::v1::FilesWay JobFiles::way() const {
  MutexLock lock(mu_);
  return way_;
}

bool JobFiles::cancelled() const {
  MutexLock lock(mu_);
  return cancelled_;
}

void JobFiles::Cancel() {
  MutexLock lock(mu_);
  cancelled_ = true;
  for (grpc::ClientContext* call : calls_) call->TryCancel();
  changed_.NotifyAll();
}

absl::Status JobFiles::Retry(absl::Duration patience, const char* what,
                             const std::function<absl::Status(bool* progress)>& attempt) {
  absl::Duration since = MonotonicNow();
  absl::Duration backoff = kMinBackoff;
  for (;;) {
    bool progress = false;
    const absl::Status status = attempt(&progress);
    if (status.ok()) return status;
    if (cancelled()) {
      return absl::CancelledError(absl::StrCat(what, ": given up, because the job ends here"));
    }
    if (!MayPass(status)) return status;
    const absl::Duration now = MonotonicNow();
    if (progress) {
      since = now;
      backoff = kMinBackoff;
    }
    if (now - since >= patience) {
      return absl::UnavailableError(absl::StrCat(what, ": nothing has reached the coordinator for ",
                                                 absl::FormatDuration(patience), ": ",
                                                 status.message()));
    }
    Log(services::kWarning, "files_wait")
        .Kv("job", options_.job_id)
        .Kv("what", what)
        .Kv("status", status)
        .Limit(absl::StrCat("files_wait/", options_.job_id));
    MutexLock lock(mu_);
    const absl::Duration until = now + backoff;
    while (!cancelled_ && MonotonicNow() < until) {
      changed_.WaitWithTimeout(mu_, until - MonotonicNow());
    }
    backoff = std::min(backoff * 2, kMaxBackoff);
  }
}

// ---- Which way ----

absl::Status JobFiles::Look() {
  job::v1::FilesWay way = job::v1::FILES_WAY_SHARED;
  if (MayAsk()) {
    absl::Status status =
        Retry(absl::InfiniteDuration(), "look", [&](bool*) { return LookOnce(&way); });
    if (!status.ok()) return status;
  }
  MutexLock lock(mu_);
  if (way != way_) {
    Log(services::kInfo, "files_way")
        .Kv("job", options_.job_id)
        .Kv("way", way == job::v1::FILES_WAY_GRPC ? "grpc" : "shared");
  }
  way_ = way;
  return absl::OkStatus();
}

absl::Status JobFiles::LookOnce(job::v1::FilesWay* way) {
  file::v1::LookRequest request;
  Show(*request.mutable_grant());
  file::v1::LookResponse response;
  Call call(*this, kLookTimeout);
  const auto reader = rpc_->stub->Look(&call.context(), request);
  if (!reader->Read(&response)) {
    const absl::Status status = services::FromGrpcStatus(reader->Finish());
    return status.ok() ? absl::UnavailableError("the coordinator showed nothing") : status;
  }
  *way = job::v1::FILES_WAY_GRPC;
  const std::string& folder = options_.storage_path;
  // The coordinator chose the name, so check that it stays in the folder.
  const bool plain = !response.name().empty() && response.name().find('/') == std::string::npos;
  if (plain && options_.may_touch_folder) {
    const auto bytes =
        services::ReadWholeFile(absl::StrCat(folder, "/", response.name()), kMaxNonceBytes);
    if (bytes.ok() && *bytes == response.nonce() && access(folder.c_str(), W_OK | X_OK) == 0) {
      *way = job::v1::FILES_WAY_SHARED;
    }
  }
  call.context().TryCancel();  // lets the coordinator remove its file
  (void)reader->Finish();
  return absl::OkStatus();
}

absl::StatusOr<job::v1::FilesWay> JobFiles::Way() {
  if (way() == job::v1::FILES_WAY_UNSPECIFIED) {
    if (absl::Status status = Look(); !status.ok()) return status;
  }
  return way();
}

// ---- Files ----

absl::StatusOr<CheckpointId> ReadCheckpointFolder(absl::string_view folder) {
  const absl::string_view name = folder.substr(folder.rfind('/') + 1);
  const size_t dash = name.find('-');
  CheckpointId id;
  if (dash == absl::string_view::npos || !absl::SimpleAtoi(name.substr(0, dash), &id.lineage) ||
      !absl::SimpleAtoi(name.substr(dash + 1), &id.step) || id.lineage < 1 || id.step < 0) {
    return absl::InvalidArgumentError(absl::StrCat(folder, ": is not the folder of a checkpoint"));
  }
  return id;
}

absl::StatusOr<std::unique_ptr<InputFile>> JobFiles::OpenCheckpointFile(const std::string& folder,
                                                                        const std::string& name) {
  const auto way = Way();
  if (!way.ok()) return way.status();
  if (*way != job::v1::FILES_WAY_GRPC) return LocalFiles().OpenCheckpointFile(folder, name);
  const auto id = ReadCheckpointFolder(folder);
  if (!id.ok()) return id.status();
  file::v1::DownloadRequest request;
  request.mutable_checkpoint_file()->set_lineage(id->lineage);
  request.mutable_checkpoint_file()->set_step(id->step);
  request.mutable_checkpoint_file()->set_name(name);
  auto file =
      std::make_unique<RemoteFile>(*this, std::move(request), absl::StrCat(folder, "/", name));
  if (absl::Status status = file->Open(); !status.ok()) return status;
  return std::unique_ptr<InputFile>(std::move(file));
}

absl::StatusOr<std::unique_ptr<InputFile>> JobFiles::OpenInitialWeights(const std::string& path,
                                                                        const std::string& name) {
  if (options_.may_touch_weights || !MayAsk()) {
    auto local = LocalFiles().OpenInitialWeights(path, name);
    if (!absl::IsNotFound(local.status()) || !MayAsk()) return local;
  }
  file::v1::DownloadRequest request;
  request.set_initial_weights(true);
  request.set_name(name);
  auto file = std::make_unique<RemoteFile>(*this, std::move(request),
                                           name.empty() ? path : absl::StrCat(path, "/", name));
  if (absl::Status status = file->Open(); !status.ok()) return status;
  return std::unique_ptr<InputFile>(std::move(file));
}

absl::StatusOr<common::v1::FileInfo> JobFiles::Write(const std::string& folder,
                                                     const std::string& name,
                                                     absl::Span<const absl::string_view> parts) {
  const auto way = Way();
  if (!way.ok()) return way.status();
  if (*way != job::v1::FILES_WAY_GRPC) return LocalFiles().Write(folder, name, parts);
  const auto id = ReadCheckpointFolder(folder);
  if (!id.ok()) return id.status();
  common::v1::FileInfo info;
  info.set_name(name);
  training::Sha256 sha;
  int64_t size = 0;
  for (const absl::string_view part : parts) {
    sha.Update(part);
    size += static_cast<int64_t>(part.size());
  }
  info.set_size_bytes(size);
  const auto digest = sha.Finish();
  info.set_sha256(digest.data(), digest.size());
  const absl::Status status = Retry(options_.patience, "upload", [&](bool* progress) {
    const absl::Status once = UploadOnce(id->lineage, id->step, info, parts, progress);
    // Bytes from before were not of this file, or a byte was damaged. The coordinator has dropped
    // them, so the upload can be retried.
    return absl::IsDataLoss(once) ? absl::AbortedError(once.message()) : once;
  });
  if (!status.ok()) return status;
  return info;
}

absl::Status JobFiles::UploadOnce(int64_t lineage, int64_t step, const common::v1::FileInfo& info,
                                  absl::Span<const absl::string_view> parts, bool* progress) {
  Call call(*this, TransferTimeout(info.size_bytes()));
  const auto stream = rpc_->stub->Upload(&call.context());
  // The stream's status says why it ended.
  const auto end = [&stream] {
    const absl::Status status = services::FromGrpcStatus(stream->Finish());
    return status.ok() ? absl::UnavailableError("the coordinator ended the upload") : status;
  };
  file::v1::UploadRequest request;
  file::v1::UploadHeader& header = *request.mutable_header();
  Show(*header.mutable_grant());
  header.set_lineage(lineage);
  header.set_step(step);
  header.set_name(info.name());
  header.set_size_bytes(info.size_bytes());
  header.set_sha256(info.sha256());
  file::v1::UploadResponse response;
  if (!stream->Write(request) || !stream->Read(&response)) return end();
  int64_t at = response.offset();
  if (at < 0 || at > info.size_bytes()) {
    call.context().TryCancel();
    (void)end();
    return absl::InternalError(
        absl::StrCat("upload: the coordinator wants byte ", at, " of ", info.size_bytes()));
  }
  const int64_t begun_at = at;
  while (at < info.size_bytes()) {
    std::string& data = *request.mutable_data();
    data.clear();
    CopyBlock(parts, at, data);
    at += static_cast<int64_t>(data.size());
    if (!stream->Write(request)) {
      // gRPC may hold blocks that were never sent, so only more than its buffers is progress.
      *progress = at - begun_at > static_cast<int64_t>(8 * kBlockBytes);
      return end();
    }
  }
  *progress = at > begun_at;
  if (!response.done() && !stream->Read(&response)) return end();
  stream->WritesDone();
  const absl::Status status = services::FromGrpcStatus(stream->Finish());
  if (response.done()) return absl::OkStatus();
  return status.ok() ? absl::UnavailableError("the coordinator did not finish the upload") : status;
}

// ---- The log ----

absl::Status JobFiles::AppendLog(int64_t lineage, std::string& lines) {
  file::v1::AppendLogRequest request;
  Show(*request.mutable_grant());
  request.set_lineage(lineage);
  const auto call = [&]() -> absl::Status {
    const auto context = services::NewContext(kLogTimeout);
    file::v1::AppendLogResponse response;
    const absl::Status status =
        services::FromGrpcStatus(rpc_->stub->AppendLog(context.get(), request, &response));
    if (status.ok()) log_bytes_ = response.size_bytes();
    // The coordinator's host may have crashed and lost the end of the file. The next try asks for
    // its size.
    if (absl::IsOutOfRange(status)) log_bytes_ = -1;
    return status;
  };
  if (log_bytes_ < 0) {
    request.set_offset(-1);
    if (absl::Status status = call(); !status.ok()) return status;
  }
  while (!lines.empty()) {
    absl::string_view block = absl::string_view(lines).substr(0, kLogBlockBytes);
    if (block.size() < lines.size()) block = block.substr(0, block.rfind('\n') + 1);
    if (block.empty()) return absl::InvalidArgumentError("metrics.jsonl: a line is too long");
    request.set_offset(log_bytes_);
    request.set_lines(std::string(block));
    const int64_t want = log_bytes_ + static_cast<int64_t>(block.size());
    if (absl::Status status = call(); !status.ok()) return status;
    if (log_bytes_ != want) {
      log_bytes_ = -1;
      return absl::AbortedError("metrics.jsonl: another process writes it");
    }
    lines.erase(0, block.size());
  }
  return absl::OkStatus();
}

}  // namespace capstan::param_store
