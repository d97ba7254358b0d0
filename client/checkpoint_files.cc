#include "client/checkpoint_files.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/job_name.h"
#include "services/channel/channel.h"
#include "services/clock/clock.h"
#include "services/server/signals.h"
#include "services/status/status.h"

namespace capstan::client {
namespace {

constexpr int64_t kPieceBytes = int64_t{8} << 20;
constexpr absl::Duration kRetry = absl::Milliseconds(200);

// Errors that a later call may not meet: a restarting coordinator, a network fault, full queues.
bool MayPass(const absl::Status& status) {
  return absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status) ||
         absl::IsCancelled(status) || absl::IsResourceExhausted(status);
}

class RemoteFile final : public param_store::InputFile {
 public:
  RemoteFile(JobClient& client, const FoundCheckpoint& checkpoint, const std::string& name)
      : client_(client) {
    request_.set_job_id(checkpoint.job_id);
    request_.set_checkpoint(checkpoint.saved.id());
    request_.set_name(name);
  }
  absl::Status Open() { return Fetch(0); }

  int64_t size_bytes() const override { return size_bytes_; }
  absl::Status ReadAt(int64_t offset, char* out, int64_t size_bytes) override {
    if (offset < 0 || size_bytes > size_bytes_ - offset) {
      return absl::DataLossError(absl::StrCat(request_.name(), ": ends at offset ", size_bytes_));
    }
    while (size_bytes > 0) {
      const int64_t have = static_cast<int64_t>(piece_.size());
      if (offset < piece_at_ || offset >= piece_at_ + have) {
        if (absl::Status status = Fetch(offset); !status.ok()) return status;
        continue;
      }
      const int64_t from = offset - piece_at_;
      const int64_t count = std::min(size_bytes, have - from);
      std::memcpy(out, piece_.data() + from, static_cast<size_t>(count));
      out += count;
      offset += count;
      size_bytes -= count;
    }
    return absl::OkStatus();
  }

 private:
  // Fetches the piece that begins at `offset`. size_bytes_ is -1 until the first answer.
  absl::Status Fetch(int64_t offset) {
    piece_.clear();
    piece_at_ = offset;
    services::ShutdownSignal& signal = services::ShutdownSignal::Install();
    absl::Duration last_byte = MonotonicNow();
    for (absl::Duration pause = absl::ZeroDuration();; pause = kRetry) {
      if (signal.WaitFor(pause)) {
        return absl::CancelledError(absl::StrCat(request_.name(), ": interrupted"));
      }
      const size_t had = piece_.size();
      const absl::Status status = FetchOnce();
      if (status.ok()) return status;
      if (piece_.size() > had) last_byte = MonotonicNow();
      if (!MayPass(status) || MonotonicNow() - last_byte >= client_.timeout()) return status;
    }
  }
  // Fetches the missing rest of the piece in one call.
  absl::Status FetchOnce() {
    const int64_t have = static_cast<int64_t>(piece_.size());
    request_.set_offset(piece_at_ + have);
    request_.set_length_bytes(kPieceBytes - have);
    const auto context = services::NewContext(client_.timeout());
    const auto reader = client_.downloads().DownloadCheckpoint(context.get(), request_);
    job::v1::DownloadCheckpointResponse response;
    absl::Status wrong;
    while (wrong.ok() && reader->Read(&response)) wrong = Take(response);
    if (!wrong.ok()) context->TryCancel();
    const absl::Status status = services::FromGrpcStatus(reader->Finish());
    if (!wrong.ok()) return wrong;
    if (!status.ok()) return status;
    const int64_t want = std::min(kPieceBytes, size_bytes_ - piece_at_);
    if (size_bytes_ < 0 || static_cast<int64_t>(piece_.size()) != want) {
      return absl::DataLossError(
          absl::StrCat(request_.name(), ": ", piece_.size(), " bytes received, want ", want));
    }
    return absl::OkStatus();
  }
  absl::Status Take(const job::v1::DownloadCheckpointResponse& response) {
    const int64_t size = response.size_bytes();
    if (size > 0 && size_bytes_ >= 0 && size != size_bytes_) {
      return absl::DataLossError(
          absl::StrCat(request_.name(), ": ", size, " bytes, before it had ", size_bytes_));
    }
    if (size_bytes_ < 0) size_bytes_ = std::max<int64_t>(size, 0);
    if (static_cast<int64_t>(piece_.size() + response.data().size()) > kPieceBytes) {
      return absl::DataLossError(
          absl::StrCat(request_.name(), ": received more than was asked for"));
    }
    piece_ += response.data();
    return absl::OkStatus();
  }

  JobClient& client_;
  job::v1::DownloadCheckpointRequest request_;
  int64_t size_bytes_ = -1;
  int64_t piece_at_ = 0;
  std::string piece_;
};

}  // namespace

absl::StatusOr<FoundCheckpoint> LookUpCheckpoint(JobClient& client, const std::string& text) {
  const absl::StatusOr<CheckpointName> name = ParseCheckpointName(text);
  if (!name.ok()) return name.status();
  const absl::StatusOr<std::string> id = FindJob(client, name->job_id);
  if (!id.ok()) return id.status();
  job::v1::ListCheckpointsRequest request;
  request.set_job_id(*id);
  const auto answer = client.Call(&JobClient::Stub::ListCheckpoints, request);
  if (!answer.ok()) return answer.status();
  const auto found = FindCheckpoint({*id, name->which}, answer->checkpoints());
  if (!found.ok()) return found.status();
  return FoundCheckpoint{*id, **found};
}

absl::StatusOr<std::unique_ptr<param_store::InputFile>> OpenRemoteFile(
    JobClient& client, const FoundCheckpoint& checkpoint, const std::string& name) {
  auto file = std::make_unique<RemoteFile>(client, checkpoint, name);
  if (absl::Status status = file->Open(); !status.ok()) return status;
  return std::unique_ptr<param_store::InputFile>(std::move(file));
}

absl::Status ResolveInitialWeights(JobClient& client, job::v1::JobSpec& spec) {
  const std::string& name = spec.model().initial_weights();
  if (!IsCheckpointName(name)) return absl::OkStatus();
  const absl::StatusOr<FoundCheckpoint> found = LookUpCheckpoint(client, name);
  if (!found.ok()) {
    return absl::Status(found.status().code(),
                        absl::StrCat("model.initial_weights: ", found.status().message()));
  }
  spec.mutable_model()->set_initial_weights(found->saved.uri());
  return absl::OkStatus();
}

absl::Status CheckNoCheckpointName(const job::v1::JobSpec& spec) {
  const std::string& name = spec.model().initial_weights();
  if (!IsCheckpointName(name)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("model.initial_weights: ", name,
                   ": only `capstan submit` can look a checkpoint up by its job; here give its "
                   "folder, or a file of `capstan checkpoint export`"));
}

}  // namespace capstan::client
