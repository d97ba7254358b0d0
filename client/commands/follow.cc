#include "client/commands/follow.h"

#include <google/protobuf/util/message_differencer.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/commands/command.h"
#include "client/text/job_json.h"
#include "client/text/job_view.h"
#include "client/text/log_text.h"
#include "client/text/notices.h"
#include "services/clock/clock.h"
#include "services/server/signals.h"

namespace capstan::client {
namespace {

constexpr absl::Duration kCancelTimeout = absl::Seconds(20);  // until a cancelled job has ended
constexpr absl::Duration kRedraw = absl::Milliseconds(200);
constexpr absl::Duration kLiveInterval = absl::Milliseconds(100);  // of updates, on a terminal
constexpr absl::Duration kPipeInterval = absl::Seconds(1);
constexpr absl::Duration kAskAfter = absl::Seconds(2);    // of silence
constexpr absl::Duration kAskAtMost = absl::Seconds(30);  // between two equal answers
constexpr absl::Duration kAskTimeout = absl::Seconds(1);  // a signal waits for this call
constexpr int kShownProblems = 10;

class Follower {
 public:
  Follower(JobClient& client, const std::string& job_id, const FollowOptions& options,
           const Console& console)
      : client_(client),
        job_id_(job_id),
        options_(options),
        console_(console),
        live_(console),
        watcher_(client, job_id, live_.on() ? kLiveInterval : kPipeInterval) {}

  Followed Run() {
    const absl::Duration until = MonotonicNow() + options_.limit;
    services::ShutdownSignal& signal = services::ShutdownSignal::Install();
    absl::Duration give_up = absl::InfiniteDuration();
    bool cancelled = false;
    while (true) {
      const JobWatcher::Update update = watcher_.Wait(
          seen_, std::min(kRedraw, std::max(absl::ZeroDuration(), until - MonotonicNow())));
      bool news = update.sequence > seen_;
      if (news) job_ = *update.job;
      seen_ = update.sequence;
      bool asked = false;
      if (news) {
        AskIn(kAskAfter);
      } else if (MonotonicNow() >= ask_at_) {
        news = asked = Ask();
        // Ask less and less often, since hundreds may wait for queued jobs.
        AskIn(news || own() ? kAskAfter : std::min(2 * ask_gap_, kAskAtMost));
      }
      if (news) {
        Show();
        // If the disk with its state is full, an answer is not durable yet and a restart may undo
        // it. So following a job of another's coordinator ends only by the stream.
        if ((!asked || own()) && (IsTerminal(job_.state()) || job_.state() == options_.until)) {
          return End(Followed::End::kReached);
        }
      } else if (live_.Resized()) {
        DrawLive();
      }
      if (seen_ > 0) Tell();
      if (absl::Status health = options_.health(); !health.ok()) return Error(health);
      if (update.given_up) return Error(update.last_error);
      if (update.silent > client_.timeout()) {
        return Error(absl::UnavailableError(absl::StrCat(
            "no coordinator for ", absl::FormatDuration(client_.timeout()),
            update.last_error.ok() ? "" : absl::StrCat(": ", update.last_error.message()))));
      }
      if (!cancelled && signal.WaitFor(absl::ZeroDuration())) {
        live_.Clear();
        if (!options_.cancel_on_signal) return End(Followed::End::kDetached);
        cancelled = true;
        give_up = MonotonicNow() + kCancelTimeout;
        console_.Note(absl::StrCat("cancelling ", job_id_,
                                   " (press Ctrl-C again to end everything at once)\n"));
        job::v1::CancelJobRequest request;
        request.set_job_id(job_id_);
        const auto answer = client_.Call(&JobClient::Stub::CancelJob, request);
        if (!answer.ok()) return Error(answer.status());
      }
      if (MonotonicNow() >= until) return End(Followed::End::kTimedOut);
      if (MonotonicNow() > give_up) {
        return Error(absl::DeadlineExceededError(absl::StrCat(job_id_, " did not end within ",
                                                              absl::FormatDuration(kCancelTimeout),
                                                              " of its cancellation")));
      }
    }
  }

 private:
  using Mode = FollowOptions::Show;

  // The coordinator belongs to this command and ends with it.
  bool own() const { return options_.cancel_on_signal; }
  void AskIn(absl::Duration gap) {
    ask_gap_ = gap;
    ask_at_ = MonotonicNow() + gap;
  }

  Followed End(Followed::End how) {
    live_.Clear();
    return {how, job_, absl::OkStatus()};
  }
  Followed Error(const absl::Status& status) {
    live_.Clear();
    return {Followed::End::kError, job_, status};
  }

  void Show() {
    if (options_.show == Mode::kNothing) return;
    if (options_.show == Mode::kEpochs) SayGang();
    if (console_.json()) {
      // The caller prints the last state, as the result.
      if (options_.show == Mode::kStates && !IsTerminal(job_.state())) {
        console_.Out(JobJson(job_) + "\n");
      }
      return;
    }
    if (console_.quiet) return;
    if (options_.show == Mode::kStates && !IsTerminal(job_.state())) {
      const std::string line = StateLine(job_);
      if (line != printed_state_ && !live_.on()) console_.Out(line + "\n");
      printed_state_ = line;
    }
    for (; printed_epochs_ < job_.epochs_size(); ++printed_epochs_) {
      live_.Clear();
      console_.Out(EpochLine(job_, job_.epochs(printed_epochs_)) + "\n");
    }
    // A history that began again may have fewer epochs.
    printed_epochs_ = std::min(printed_epochs_, job_.epochs_size());
    DrawLive();
  }

  void DrawLive() {
    if (!live_.on() || IsTerminal(job_.state())) return;
    live_.Draw(LiveLines(job_, {SizeOfTerminal().width, console_.stderr_color}));
  }

  // With any `show`: tells what stops the job from continuing or from being saved.
  void Tell() {
    const bool drawn = live_.on() && options_.show != Mode::kNothing;
    const std::string text = notices_.Next(job_, drawn, MonotonicNow());
    if (text.empty()) return;
    live_.Clear();
    console_.Err(text);
    if (drawn) DrawLive();
  }

  // Prints what the plan could not know: the members of the gang and their devices.
  void SayGang() {
    // A resumed job had a gang before, and has none while it waits.
    if (said_gang_ || job_.device().empty() || job_.state() == common::v1::JOB_STATE_PENDING) {
      return;
    }
    const auto admitted =
        std::find_if(job_.events().rbegin(), job_.events().rend(),
                     [](const job::v1::Event& event) { return event.type() == "Admitted"; });
    if (admitted == job_.events().rend()) return;
    live_.Clear();
    console_.Note(absl::StrCat(Printable(admitted->message()), "\n"));
    said_gang_ = true;
  }

  // Asks for the job and stores it in job_. False: no answer, or nothing new.
  bool Ask() {
    job::v1::GetJobRequest request;
    request.set_job_id(job_id_);
    job::v1::GetJobResponse response;
    const auto context = services::NewContext(kAskTimeout);
    if (!client_.stub().GetJob(context.get(), request, &response).ok()) return false;
    if (google::protobuf::util::MessageDifferencer::Equals(response.job(), job_)) return false;
    job_ = std::move(*response.mutable_job());
    return true;
  }

  JobClient& client_;
  const std::string job_id_;
  const FollowOptions& options_;
  const Console& console_;
  LiveArea live_;
  JobWatcher watcher_;
  job::v1::Job job_;
  int64_t seen_ = 0;
  absl::Duration ask_gap_ = kAskAfter;
  absl::Duration ask_at_ = MonotonicNow() + kAskAfter;
  int printed_epochs_ = 0;
  bool said_gang_ = false;
  std::string printed_state_;
  Notices notices_;
};

}  // namespace

Followed Follow(JobClient& client, const std::string& job_id, const FollowOptions& options,
                const Console& console) {
  return Follower(client, job_id, options, console).Run();
}

ExitCode FollowToTheEnd(JobClient& client, const std::string& job_id, const FollowOptions& options,
                        const Console& console) {
  const Followed followed = Follow(client, job_id, options, console);
  const bool silent = options.show == FollowOptions::Show::kNothing;
  if (followed.end == Followed::End::kError && followed.job.job_id().empty()) {
    return ReportJob(client, job_id, followed.error, console);
  }
  if (console.json()) console.Out(JobJson(followed.job) + "\n");
  switch (followed.end) {
    case Followed::End::kError:
      return ReportJob(client, job_id, followed.error, console);
    case Followed::End::kDetached:
      console.Note(absl::StrCat("detached: ", job_id, " continues; capstan watch ", job_id,
                                " shows it again, capstan cancel ", job_id, " ends it\n"));
      return kExitNotFinished;
    case Followed::End::kTimedOut:
      console.Note(absl::StrCat(job_id, " is ", StateName(followed.job.state()), "\n"));
      return kExitNotFinished;
    case Followed::End::kReached:
      break;
  }
  if (!IsTerminal(followed.job.state())) return kExitDone;  // the state that the caller waited for
  if (!console.json() && !silent) {
    if (followed.job.state() == common::v1::JOB_STATE_FAILED)
      PrintProblems(client, job_id, console);
    console.Out(Summary(followed.job, {console.width, console.stdout_color}));
  }
  return ExitCodeOf(followed.job.state());
}

void PrintProblems(JobClient& client, const std::string& job_id, const Console& console) {
  const auto lines = client.Problems(job_id);
  if (!lines.ok()) return;
  const size_t first = lines->size() > kShownProblems ? lines->size() - kShownProblems : 0;
  for (size_t i = first; i < lines->size(); ++i) console.Err(LogText((*lines)[i], {}) + "\n");
}

}  // namespace capstan::client
