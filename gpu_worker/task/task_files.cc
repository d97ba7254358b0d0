// Files that a task saves, the messages about them, and orders to a task that is its own lead.
#include <atomic>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "gpu_worker/task/checkpoint_files.h"
#include "gpu_worker/task/task.h"
#include "param_store/checkpoint/residual_file.h"
#include "param_store/checkpoint/shard_file.h"
#include "services/check/check.h"
#include "services/logging/log.h"
#include "training/spec/lead_messages.h"

namespace capstan::gpu_worker {

using services::Log;

constexpr absl::Duration kFileRetry = absl::Seconds(1);
// One that is being written, and one that waits for it. The last of a lineage comes on top.
constexpr size_t kResidualWrites = 2;

void Task::SetFilesKey(const std::string& key) {
  has_files_key_ = has_files_key_ || !key.empty();
  if (job_files_ != nullptr) job_files_->SetKey(key);
}

void Task::SaveShardFile(LocalExchange::Snapshot snapshot) {
  reports_.Expect(snapshot.step, snapshot.last);
  reports_.SetLead(snapshot.step, snapshot.lead);
  const int64_t lineage = snapshot.lineage, step = snapshot.step;
  WriteFile(lineage, step, [this, snapshot = std::move(snapshot)] {
    step_log_->Flush();  // the log must contain everything up to the checkpoint
    param_store::ShardFileOptions options;
    options.folder = CheckpointFolder(*job_, snapshot.lineage, snapshot.step);
    options.job_id = job_->id();
    options.spec_digest = job_->digest;
    options.lineage = snapshot.lineage;
    options.step = snapshot.step;
    param_store::ShardTensors tensors;
    tensors.layout = &job_->layout;
    tensors.run = {0, job_->layout.chunk_count()};
    tensors.weights = snapshot.weights->span();
    if (snapshot.state != nullptr) tensors.state = snapshot.state->span();
    auto file = param_store::WriteShardFile(options, tensors, *job_files_);
    if (!file.ok()) return file.status();
    Post([this, lineage = snapshot.lineage, step = snapshot.step, file = *file] {
      if (lineage != view_.lineage()) return;
      reports_.Written(step, file);
      if (local_ != nullptr) local_->FilesWritten(lineage, step);
      SendState();
    });
    return absl::OkStatus();
  });
}

void Task::Do(const exchange::task::WriteWeights& e) {
  reports_.Expect(e.version, /*last=*/true);
  WriteFile(e.lineage, e.version, [this, e, weights = weights_.weights] {
    auto written = WriteWeightsFile(*job_, e.lineage, e.version, weights->span(), *job_files_);
    if (!written.ok()) return written.status();
    Post([this, e, written = *written] {
      if (e.lineage != view_.lineage()) return;
      reports_.SetWeights(e.version, written.weights_sha256);
      reports_.Written(e.version, written.file);
      Give(exchange::task::WeightsWritten{e.lineage, e.version});
    });
    return absl::OkStatus();
  });
}

void Task::Do(const exchange::task::ReadResiduals& e) {
  if (const absl::Status status = CheckBase(base_manifest_); !status.ok()) {
    return Give(exchange::task::Failed{FailureReasonOf(status), std::string(status.message())});
  }
  state_.set_reads_residuals(!base_manifest_.empty() && !e.lanes.empty());
  if (base_manifest_.empty()) {
    for (const int32_t lane : e.lanes) encoder_->Begin(lane, nullptr);
    return Give(exchange::task::ResidualsRead{e.lineage, 0});
  }
  files_.Post([this, e, folder = base_manifest_, files = job_files_] {
    std::vector<std::shared_ptr<FloatBuffer>> buffers;
    std::vector<absl::Span<float>> residuals;
    for (size_t i = 0; i < e.lanes.size(); ++i) {
      buffers.push_back(std::make_shared<FloatBuffer>(job_->layout.total_floats()));
      residuals.push_back(buffers.back()->span());
    }
    param_store::ResidualRequest request;
    request.folder = folder;
    request.job_id = job_->id();
    request.training_digest = job_->spec.training_digest();
    request.layout = &job_->layout;
    request.lanes = e.lanes;
    request.files = files.get();
    int64_t version = 0;
    const param_store::BaseWeightsError error =
        param_store::LoadResiduals(request, residuals, &version);
    Post([this, e, buffers, version, error] {
      if (ended_ || e.lineage != view_.lineage()) return;
      state_.set_reads_residuals(false);
      if (!error.reason.empty()) {
        Log(services::kError, "residuals_not_read").Kv("status", error.status);
        state_.set_refuses_base(error.reason == "CheckpointCorrupt" ||
                                error.reason == "DataMissing");
        return Give(exchange::task::Failed{error.reason, std::string(error.status.message())});
      }
      for (size_t i = 0; i < e.lanes.size(); ++i) encoder_->Begin(e.lanes[i], buffers[i]);
      Give(exchange::task::ResidualsRead{e.lineage, version});
      SendState();
    });
  });
}

void Task::Do(const exchange::task::WriteResiduals& e) {
  std::map<int32_t, std::shared_ptr<const FloatBuffer>> residuals;
  for (const int32_t lane : e.lanes) {
    residuals[lane] = encoder_->Residual(lane);
    CAPSTAN_CHECK(residuals[lane] != nullptr);
  }
  reports_.Expect(e.version, e.last);
  if (residual_writes_.size() >= kResidualWrites && !e.last) {
    // Each one keeps a copy of all residuals in memory.
    reports_.Failed(e.version, "the residuals of earlier versions are still being written");
    return SendState();
  }
  const std::pair<int64_t, int64_t> id(e.lineage, e.version);
  auto dropped = std::make_shared<std::atomic<bool>>(false);
  residual_writes_[id] = {e.last, dropped};
  WriteFile(e.lineage, e.version, [this, e, id, dropped, residuals = std::move(residuals)] {
    if (*dropped) {
      Post([this, id] { residual_writes_.erase(id); });
      return absl::OkStatus();
    }
    param_store::ResidualFileOptions options;
    options.folder = CheckpointFolder(*job_, e.lineage, e.version);
    options.job_id = job_->id();
    options.spec_digest = job_->digest;
    options.rank = rank_;
    options.lineage = e.lineage;
    options.step = e.version;
    std::map<int32_t, absl::Span<const float>> lanes;
    for (const auto& [lane, residual] : residuals) lanes[lane] = residual->span();
    auto file = param_store::WriteResidualFile(options, job_->layout, lanes, *job_files_);
    if (!file.ok()) {
      if (!e.last) Post([this, id] { residual_writes_.erase(id); });
      return file.status();
    }
    Post([this, e, id, file = *file] {
      residual_writes_.erase(id);
      if (e.lineage != view_.lineage()) return;
      reports_.Written(e.version, file);
      SendState();
    });
    return absl::OkStatus();
  });
}

void Task::WriteFile(int64_t lineage, int64_t step, std::function<absl::Status()> write) {
  files_.Post([this, lineage, step, write = std::move(write)] {
    const absl::Status status = write();
    if (status.ok()) return;
    Log(services::kError, "file_not_written").Kv("step", step).Kv("status", status);
    Post([this, lineage, step, write, status] {
      if (ended_ || lineage != view_.lineage()) return;
      const bool owed = reports_.Failed(step, std::string(status.message()));
      SendState();
      if (!owed) return;
      strand_.PostAfter(kFileRetry, [this, alive = alive_, lineage, step, write] {
        if (*alive) WriteFile(lineage, step, write);
      });
    });
  });
}

void Task::GiveOrders(const node::v1::GiveOrders& give) {
  if (ended_ || local_ == nullptr) return;  // otherwise shard 0 is the lead
  auto orders = training::spec::ReadOrders(give.orders());
  if (orders.ok()) return local_->GiveOrders(give.lineage(), *orders);
  Log(services::kError, "order_refused").Kv("status", orders.status());
}

void Task::FilesTaken(const node::v1::FilesTaken& taken) {
  if (ended_) return;
  reports_.Taken(taken.lineage(), taken.step());
  const auto write = residual_writes_.find({taken.lineage(), taken.step()});
  if (write != residual_writes_.end() && !write->second.last) *write->second.dropped = true;
  if (local_ != nullptr) local_->FilesTaken(taken.lineage(), taken.step());
  SendState();
}

void Task::SetCoordinatorUp(bool up) {
  if (coordinator_up_) reached_at_ = strand_.Now();
  coordinator_up_ = up;
}

}  // namespace capstan::gpu_worker
