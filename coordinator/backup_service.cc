#include "coordinator/backup_service.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "coordinator/caller.h"
#include "services/files/files.h"
#include "services/logging/log.h"
#include "services/version/version.h"
#include "training/codec/sha256.h"

namespace capstan::coordinator {
namespace {

constexpr int64_t kSentAtOnce = int64_t{512} << 10;

// Reads the copy while it is sent. Use from one thread at a time.
class SentCopy {
 public:
  explicit SentCopy(int fd) : fd_(fd) {
    struct stat file = {};
    if (::fstat(fd_, &file) == 0) size_bytes_ = file.st_size;
  }
  ~SentCopy() { ::close(fd_); }
  SentCopy(const SentCopy&) = delete;
  SentCopy& operator=(const SentCopy&) = delete;

  int64_t size_bytes() const { return size_bytes_; }
  bool at_end() const { return at_ >= size_bytes_; }
  absl::Status Next(std::string& block) {
    block.resize(static_cast<size_t>(std::min(kSentAtOnce, size_bytes_ - at_)));
    for (size_t have = 0; have < block.size();) {
      const ssize_t size = ::pread(fd_, block.data() + have, block.size() - have,
                                   static_cast<off_t>(at_ + static_cast<int64_t>(have)));
      if (size < 0 && errno == EINTR) continue;
      if (size < 0) return services::ErrnoStatus(errno, "read", "the copy of the journal");
      if (size == 0) return absl::DataLossError("the copy of the journal has become shorter");
      have += static_cast<size_t>(size);
    }
    at_ += static_cast<int64_t>(block.size());
    sha_.Update(block);
    return absl::OkStatus();
  }
  std::string Hash() { return sha_.FinishHex(); }

 private:
  const int fd_;
  int64_t size_bytes_ = 0;
  int64_t at_ = 0;
  training::Sha256 sha_;
};

}  // namespace

// Each action starts when the one before is done, so no lock is needed.
class BackupCall final : public FileCallOn<grpc::ServerWriteReactor<job::v1::BackupResponse>> {
 public:
  BackupCall(BackupServiceImpl& service, grpc::CallbackServerContext* context)
      : FileCallOn(service.calls_, context), service_(service) {}

  void Begin() override {
    if (absl::Status status = CheckAdmin(*context_, "Backup"); !status.ok()) return End(status);
    service_.coordinator_.Post([this, self = shared_from_this()] {
      if (!over()) BeginCopy();
    });
  }
  void OnWriteDone(bool ok) override {
    if (!TakeBack()) return;
    if (!ok) return End(absl::CancelledError("backup: the stream broke off"));
    if (told_all_) return End(absl::OkStatus());
    response_.Clear();
    OnDisk([this] { Send(); });
  }

 private:
  void BeginCopy() {
    if (service_.coordinator_.draining()) {
      return End(absl::UnavailableError("the coordinator shuts down"));
    }
    if (service_.copy_ != nullptr) {
      return End(absl::ResourceExhaustedError("another backup is under way; try again"));
    }
    if (!Admit("backup", service_.journal_.folder())) return;
    auto copy = JournalCopy::Begin(service_.journal_);
    if (!copy.ok()) return End(copy.status());
    service_.copy_ = *std::move(copy);
    CopyMore();
  }
  // Posts itself again, so that commits and other tasks run in between.
  void CopyMore() {
    if (over()) return service_.copy_.reset();
    const absl::StatusOr<bool> whole = service_.copy_->Step(BackupServiceImpl::kPagesAtOnce);
    if (whole.ok() && !*whole) {
      service_.coordinator_.Post([this, self = shared_from_this()] { CopyMore(); });
      return;
    }
    const std::unique_ptr<JournalCopy> copy = std::move(service_.copy_);
    if (!whole.ok()) return End(whole.status());
    const absl::StatusOr<int> fd = copy->Take();
    if (!fd.ok()) return End(fd.status());
    const auto file = std::make_shared<SentCopy>(*fd);
    file_ = file.get();
    Hold(file);
    response_.set_version(std::string(Version()));
    response_.set_commits(copy->count().commits);
    response_.set_size_bytes(file_->size_bytes());
    response_.set_mark(CommitMark::Text(copy->count()));
    services::Log(services::kInfo, "backup")
        .Kv("commits", copy->count().commits)
        .Kv("bytes", file_->size_bytes());
    WantAnswers();
    OnDisk([this] { Send(); });
  }
  void Send() {
    if (file_->at_end()) {
      response_.set_sha256(file_->Hash());
      told_all_ = true;
    } else if (absl::Status status = file_->Next(*response_.mutable_data()); !status.ok()) {
      return End(status);
    }
    Answered();
    if (GiveAway()) StartWrite(&response_);
  }

  BackupServiceImpl& service_;
  job::v1::BackupResponse response_;
  SentCopy* file_ = nullptr;  // owned by Hold
  bool told_all_ = false;
};

grpc::ServerWriteReactor<job::v1::BackupResponse>* BackupServiceImpl::Backup(
    grpc::CallbackServerContext* context, const job::v1::BackupRequest*) {
  return calls_.Enter(std::make_shared<BackupCall>(*this, context));
}

}  // namespace capstan::coordinator
