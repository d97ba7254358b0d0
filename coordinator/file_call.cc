#include "coordinator/file_call.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "services/clock/clock.h"
#include "services/logging/log.h"
#include "services/status/status.h"

namespace capstan::coordinator {
namespace {

absl::Status CallsEnd() { return absl::UnavailableError("the coordinator shuts down"); }

}  // namespace

// ---- FileCall ----

FileCall::~FileCall() {
  if (!key_.empty()) calls_.LetGo(key_, in_order_, std::move(held_), taken_);
}

bool FileCall::TakeOver() {
  Turn turn = turn_;
  while (turn == Turn::kOurs || turn == Turn::kHeader) {
    if (turn_.compare_exchange_weak(turn, Turn::kOver)) return true;
  }
  return false;
}

void FileCall::End(const absl::Status& status) {
  Turn ours = Turn::kOurs;
  if (!turn_.compare_exchange_strong(ours, Turn::kOver)) return;
  GiveStatus(services::ToGrpcStatus(status));
}

void FileCall::EndHeader(const absl::Status& status) {
  Turn header = Turn::kHeader;
  if (!turn_.compare_exchange_strong(header, Turn::kOver)) return;
  GiveStatus(services::ToGrpcStatus(status));
}

bool FileCall::GiveAway(Turn to) {
  Turn ours = Turn::kOurs;
  return turn_.compare_exchange_strong(ours, to);
}

bool FileCall::TakeBack() {
  Turn turn = turn_;
  while (turn == Turn::kPeers || turn == Turn::kHeader) {
    if (!turn_.compare_exchange_weak(turn, Turn::kOurs)) continue;
    // OnCallCancelled was called during the peer's turn and left the end to us.
    if (cancelled_) End(absl::CancelledError("the caller has left"));
    return !cancelled_;
  }
  return false;
}

void FileCall::OnCallCancelled() {
  cancelled_ = true;
  End(absl::CancelledError("the caller has left"));
}

void FileCall::OnCallDone() { calls_.Leave(id_); }

bool FileCall::Admit(const char* kind, const std::string& folder, bool in_order) {
  const std::string key = absl::StrCat(kind, "/", folder);
  if (calls_.Admit(key)) {
    folder_ = folder;
    key_ = key;
    in_order_ = in_order;
    return true;
  }
  const absl::Status status = absl::UnavailableError(
      absl::StrCat(folder, ": ", calls_.max_calls_, " calls (", kind,
                   ") wait for it, which is the limit: does its disk answer? Try again later"));
  services::Log(services::kWarning, "files_refused").Kv("status", status).Limit(key);
  End(status);
  return false;
}

bool FileCall::Take(const std::string& path) {
  if (!calls_.Take(path, id_)) return false;
  taken_ = path;
  return true;
}

void FileCall::WantAnswers() { WatchDisk(MonotonicNow() + FileCalls::kPatience); }

// One timer per call serves all its pieces of work, because there are thousands of them in a
// second.
void FileCall::WatchDisk(absl::Duration when) {
  calls_.coordinator_.strand().CallAt(when, [weak = weak_from_this()] {
    const std::shared_ptr<FileCall> self = weak.lock();
    if (self == nullptr || self->over()) return;
    const absl::Duration now = MonotonicNow();
    const int64_t asked_at_ns = self->asked_at_ns_;
    const absl::Duration begin = asked_at_ns == kNotAsked ? now : absl::Nanoseconds(asked_at_ns);
    if (now < begin + FileCalls::kPatience) return self->WatchDisk(begin + FileCalls::kPatience);
    const absl::Status status = absl::UnavailableError(
        absl::StrCat(self->folder_, ": its disk has not answered within ",
                     absl::FormatDuration(FileCalls::kPatience), "; try again later"));
    services::Log(services::kWarning, "folder_does_not_answer")
        .Kv("status", status)
        .Limit(absl::StrCat("folder_does_not_answer/", self->folder_));
    self->End(status);
  });
}

void FileCall::OnDisk(std::function<void()> work) {
  asked_at_ns_ = absl::ToInt64Nanoseconds(MonotonicNow());
  const bool taken =
      calls_.Threads(in_order_).TryPost(key_, [self = shared_from_this(), work = std::move(work)] {
        if (!self->over()) work();
      });
  if (taken) return;
  End(absl::UnavailableError(absl::StrCat(
      folder_, ": no thread for its files: its disk does not answer, or the coordinator cannot ",
      "start more threads; try again later")));
}

// ---- FileCalls ----

FileCalls::FileCalls(Coordinator& coordinator, size_t max_calls)
    : coordinator_(coordinator),
      max_calls_(max_calls),
      disks_({.threads = kThreads, .max_waiting = max_calls}) {}

void FileCalls::Begin(const std::shared_ptr<FileCall>& call) {
  bool draining = false;
  {
    MutexLock lock(mu_);
    call->id_ = ++last_id_;
    calls_.emplace(call->id_, call);
    draining = draining_;
  }
  draining ? call->End(CallsEnd()) : call->Begin();
}

void FileCalls::Leave(int64_t id) {
  std::shared_ptr<FileCall> call;
  MutexLock lock(mu_);
  const auto found = calls_.find(id);
  call = std::move(found->second);  // destroyed after the lock is released
  calls_.erase(found);
}

bool FileCalls::Admit(const std::string& key) {
  MutexLock lock(mu_);
  size_t& count = admitted_[key];
  if (count >= max_calls_) return false;
  ++count;
  return true;
}

bool FileCalls::Take(const std::string& path, int64_t id) {
  MutexLock lock(mu_);
  const auto [writer, fresh] = taken_.emplace(path, id);
  if (fresh) return true;
  // If the call is not found, its caller has left, and the disk still has the file.
  const auto call = calls_.find(writer->second);
  if (call != calls_.end()) call->second->context_->TryCancel();
  return false;
}

void FileCalls::LetGo(const std::string& key, bool in_order, std::shared_ptr<void> held,
                      const std::string& taken) {
  if (held == nullptr) return GiveBack(key, taken);
  // The task empties the box when it runs, so a copy of the task that stays holds nothing of a
  // disk.
  const auto box = std::make_shared<std::shared_ptr<void>>(std::move(held));
  const std::function<void()> end = [this, key, box, taken] {
    box->reset();
    GiveBack(key, taken);
  };
  // Runs here at the end of all, or if no thread is available; in that case none hangs on this
  // folder.
  if (!Threads(in_order).Post(key, end)) end();
}

void FileCalls::GiveBack(const std::string& key, const std::string& taken) {
  MutexLock lock(mu_);
  if (!taken.empty()) taken_.erase(taken);
  const auto count = admitted_.find(key);
  if (--count->second == 0) admitted_.erase(count);
}

void FileCalls::Drain() {
  std::vector<std::shared_ptr<FileCall>> over;
  {
    MutexLock lock(mu_);
    draining_ = true;
    for (const auto& entry : calls_) {
      if (entry.second->TakeOver()) {
        over.push_back(entry.second);
      } else {
        entry.second->context_->TryCancel();  // a read or write ends, or the status is given
      }
    }
  }
  for (const std::shared_ptr<FileCall>& call : over) {
    call->GiveStatus(services::ToGrpcStatus(CallsEnd()));
  }
}

bool FileCalls::Stop(absl::Duration patience) {
  const absl::Duration deadline = MonotonicNow() + patience;
  const bool disks = disks_.Stop(patience);
  return in_order_.Stop(deadline - MonotonicNow()) && disks;
}

}  // namespace capstan::coordinator
