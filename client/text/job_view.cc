#include "client/text/job_view.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "client/text/exit_codes.h"
#include "client/text/job_json.h"
#include "client/text/number_text.h"
#include "client/text/screen_text.h"
#include "services/visible_text/visible_text.h"
#include "training/history/job_history.h"
#include "training/spec/validate.h"

namespace capstan::client {
namespace {

using training::spec::HasNumericTargets;

constexpr int kLossDigits = 6;
constexpr int kBarWidth = 24;
constexpr int kLeastBarWidth = 5;  // a shorter bar says less than the number beside it

// A number that may be missing.
std::string MetricText(bool present, double value, int digits) {
  return present ? absl::StrFormat("%.*f", digits, value) : "-";
}

// The losses of a regression have the scale of its targets.
std::string LossText(const job::v1::Job& job, bool present, double value) {
  if (present && HasNumericTargets(job.spec())) return NumberText(value, kLossDigits);
  return MetricText(present, value, 4);
}

// A loss of an epoch that is done. Its record has no loss that is not finite, be it NaN or infinite.
std::string EpochLossText(const job::v1::Job& job, bool finite, double value) {
  return finite ? LossText(job, true, value) : "nan";
}

bool WasEvaluated(const job::v1::Job& job, const common::v1::EpochRecord& epoch) {
  const job::v1::ResolvedSpec& spec = job.resolved();
  const int64_t step =
      training::LastStepOf(epoch, spec.steps_per_epoch(), job.progress().total_steps());
  return spec.evaluation_blocks() > 0 &&
         (step == job.progress().total_steps() ||
          (spec.evaluate_every_steps() > 0 && step % spec.evaluate_every_steps() == 0));
}

std::string Painted(const std::string& text, const char* code, bool color) {
  return color ? absl::StrCat("\033[", code, "m", text, "\033[0m") : text;
}

const char* StateColor(common::v1::JobState state) {
  switch (state) {
    case common::v1::JOB_STATE_SUCCEEDED:
      return "32";
    case common::v1::JOB_STATE_FAILED:
      return "31";
    case common::v1::JOB_STATE_CANCELLED:
      return "33";
    default:
      return "36";
  }
}

double Seconds(const google::protobuf::Timestamp& from, const google::protobuf::Timestamp& to) {
  return static_cast<double>(to.seconds() - from.seconds()) + 1e-9 * (to.nanos() - from.nanos());
}

}  // namespace

std::string Printable(const std::string& text) { return services::VisibleText(text); }

std::string ShortDuration(double seconds) {
  if (!std::isfinite(seconds) || seconds < 0) return "-";
  if (seconds < 60) return absl::StrFormat("%.1fs", seconds);
  const int64_t whole = std::llround(std::min(seconds, 1e9));
  if (whole < 3600) return absl::StrFormat("%dm%02ds", whole / 60, whole % 60);
  return absl::StrFormat("%dh%02dm", whole / 3600, whole % 3600 / 60);
}

std::string CheckpointMetric(const job::v1::SavedCheckpoint& checkpoint) {
  if (!checkpoint.has_metric()) return "";
  return checkpoint.smaller_is_better() ? absl::StrFormat("%.6g", checkpoint.metric())
                                        : absl::StrFormat("%.4f", checkpoint.metric());
}

std::string EpochLine(const job::v1::Job& job, const common::v1::EpochRecord& epoch) {
  std::string out = absl::StrFormat(
      "Epoch[%d] Step[%d] Speed: %s samples/sec train-loss=%s", epoch.epoch(),
      training::LastStepOf(epoch, job.resolved().steps_per_epoch(), job.progress().total_steps()),
      MetricText(epoch.has_samples_per_second(), epoch.samples_per_second(), 1),
      EpochLossText(job, epoch.has_train_loss(), epoch.train_loss()));
  if (HasNumericTargets(job.spec())) {
    if (epoch.has_validation_loss() || WasEvaluated(job, epoch)) {
      absl::StrAppend(&out, " validation-loss=",
                      EpochLossText(job, epoch.has_validation_loss(), epoch.validation_loss()));
    }
    return out;
  }
  absl::StrAppend(
      &out, " train-accuracy=", MetricText(epoch.has_train_accuracy(), epoch.train_accuracy(), 4));
  if (epoch.has_validation_accuracy()) {
    absl::StrAppend(&out,
                    " validation-accuracy=", MetricText(true, epoch.validation_accuracy(), 4));
  }
  return out;
}

std::string StateLine(const job::v1::Job& job) {
  std::string out = StateName(job.state());
  if (!job.reason().empty()) absl::StrAppend(&out, "  ", Printable(job.reason()));
  return out;
}

std::string CancelledText(common::v1::JobState state) {
  return IsTerminal(state) ? StateName(state) : "cancelling";
}

std::string SuspendedText(common::v1::JobState state) {
  return state == common::v1::JOB_STATE_SUSPENDED ? StateName(state) : "suspending: saves first";
}

SaveTrouble SaveTroubleOf(const job::v1::Job& job) {
  const auto& conditions = job.conditions();
  if (std::find(conditions.begin(), conditions.end(), "CHECKPOINT_DEGRADED") == conditions.end()) {
    return {};
  }
  const auto& p = job.progress();
  if (p.total_steps() > 0 && p.step() == p.total_steps() && !job.message().empty()) {
    return {job.message(), /*at_end=*/true};
  }
  for (auto event = job.events().rbegin(); event != job.events().rend(); ++event) {
    if (event->type() == "CheckpointFailed") {
      return {absl::StrCat("no checkpoint: ", event->message()), false};
    }
  }
  return {"no checkpoint can be written", false};
}

std::string LiveLines(const job::v1::Job& job, const ViewStyle& style) {
  const auto& p = job.progress();
  const int width = std::max(style.width - 1, 0);
  const std::string head = StateName(job.state());
  const std::string painted = Painted(head, StateColor(job.state()), style.color);
  if (p.total_steps() <= 0) {
    const std::string& why = job.message().empty() ? job.reason() : job.message();
    return CutLine(absl::StrCat(painted, "  ", Printable(why)), width);
  }
  const double ratio = static_cast<double>(p.step()) / static_cast<double>(p.total_steps());
  // If the line is narrow, the bar goes first, then epoch and step. The ETA goes last.
  std::string epoch = absl::StrFormat(
      "  epoch %d/%d", p.epoch(),
      job.spec().training().has_epochs() ? job.spec().training().epochs() : p.epoch());
  std::string step = absl::StrFormat("  step %d/%d", p.step(), p.total_steps());
  const std::string percent = absl::StrFormat("  %3.0f%%", 100 * ratio);
  const std::string eta =
      absl::StrCat("  ETA ", p.has_eta_seconds() ? ShortDuration(p.eta_seconds()) : "-");
  int room = width - static_cast<int>(head.size() + epoch.size() + step.size() + percent.size() +
                                      eta.size());
  for (std::string* part : {&epoch, &step}) {
    if (room >= 0) break;
    room += static_cast<int>(part->size());
    part->clear();
  }
  std::string bar;
  const int cells = std::min(kBarWidth, room - 3);
  if (cells >= kLeastBarWidth) {
    const int filled = std::clamp(static_cast<int>(ratio * cells), 0, cells);
    bar = absl::StrCat(" [", std::string(static_cast<size_t>(filled), '#'),
                       std::string(static_cast<size_t>(cells - filled), '-'), "]");
  }
  std::vector<std::string> parts = {absl::StrCat("loss ", LossText(job, p.has_loss(), p.loss()))};
  if (!HasNumericTargets(job.spec())) {
    parts.push_back(absl::StrCat(
        "accuracy ", p.has_accuracy() ? absl::StrFormat("%.1f%%", 100 * p.accuracy()) : "-"));
  }
  parts.push_back(
      absl::StrCat("lr ", p.has_learning_rate() ? absl::StrCat(p.learning_rate()) : "-"));
  parts.push_back(absl::StrCat(MetricText(p.has_samples_per_second(), p.samples_per_second(), 0),
                               " samples/s"));
  const auto second = [&parts] { return absl::StrJoin(parts, "   "); };
  // If it is too long, the learning rate goes first, then accuracy. Loss and speed stay.
  while (parts.size() > 2 && ShownWidth(second()) > width) parts.erase(parts.end() - 2);
  const std::string third =
      Printable(job.message().empty() ? SaveTroubleOf(job).text : job.message());
  return absl::StrCat(CutLine(absl::StrCat(painted, epoch, step, percent, bar, eta), width), "\n",
                      CutLine(second(), width), third.empty() ? "" : "\n", CutLine(third, width));
}

std::string SkippedText(int64_t steps) {
  return absl::StrCat(steps, steps == 1 ? " step" : " steps",
                      " changed nothing, because loss or gradient was not finite");
}

std::string Summary(const job::v1::Job& job, const ViewStyle& style) {
  std::string out =
      absl::StrCat("\n", job.job_id(), "  ",
                   Painted(StateName(job.state()), StateColor(job.state()), style.color));
  if (!job.reason().empty()) absl::StrAppend(&out, "  ", Printable(job.reason()));
  out += "\n";
  if (!job.message().empty()) absl::StrAppend(&out, Printable(job.message()), "\n");
  if (job.state() != common::v1::JOB_STATE_SUCCEEDED) return out;
  if (!job.epochs().empty()) {
    const bool numbers = HasNumericTargets(job.spec());
    const auto& last = *job.epochs().rbegin();
    const bool validated = numbers ? last.has_validation_loss() || WasEvaluated(job, last)
                                   : last.has_validation_accuracy();
    if (numbers) {
      const bool finite = validated ? last.has_validation_loss() : last.has_train_loss();
      const double loss = validated ? last.validation_loss() : last.train_loss();
      absl::StrAppendFormat(&out, "loss        %s on the %s set after epoch %d\n",
                            EpochLossText(job, finite, loss), validated ? "test" : "training",
                            last.epoch());
    } else if (validated || last.has_train_accuracy()) {
      absl::StrAppendFormat(&out, "accuracy    %.4f on the %s set after epoch %d\n",
                            validated ? last.validation_accuracy() : last.train_accuracy(),
                            validated ? "test" : "training", last.epoch());
    }
  }
  if (job.has_started_at() && job.has_finished_at()) {
    absl::StrAppendFormat(&out, "time        %.1f seconds, %d samples\n",
                          Seconds(job.started_at(), job.finished_at()), job.samples_used());
  }
  if (job.progress().skipped_steps() > 0) {
    absl::StrAppend(&out, "skipped     ", SkippedText(job.progress().skipped_steps()), "\n");
  }
  std::string folder = job.checkpoint_uri();
  if (folder.rfind("file://", 0) == 0) folder = folder.substr(7);
  absl::StrAppend(&out, "checkpoint  ", folder, "\n");
  absl::StrAppend(&out, "sha256      ", job.weights_sha256(), "\n");
  absl::StrAppend(&out, "\nLoad the weights in Python (pip install safetensors numpy):\n",
                  "  from safetensors.numpy import load_file\n", "  weights = load_file(\"", folder,
                  "/weights.safetensors\")\n");
  return out;
}

}  // namespace capstan::client
