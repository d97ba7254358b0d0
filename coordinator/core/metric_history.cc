#include "coordinator/core/metric_history.h"

#include <algorithm>

#include "capstan/coordinator/v1/durable.pb.h"

namespace capstan::coordinator::core {
namespace {

using job::v1::MetricPoint;
using job::v1::StepBreakdown;

constexpr size_t kPagePoints = 100;

// `point` in the place of itself and of the one before it.
void TakeIn(const MetricPoint& before, MetricPoint& point) {
  if (before.has_breakdown()) {
    *point.mutable_breakdown() = Joined(before.breakdown(), point.breakdown());
  }
}

}  // namespace

StepBreakdown Joined(const StepBreakdown& a, const StepBreakdown& b) {
  const double steps = static_cast<double>(a.steps() + b.steps());
  if (a.steps() == 0) return b;
  const double share = static_cast<double>(a.steps()) / steps;
  const auto mean = [share](double x, double y) { return share * x + (1 - share) * y; };
  StepBreakdown out;
  out.set_steps(a.steps() + b.steps());
  out.set_total(mean(a.total(), b.total()));
  out.set_data_wait(mean(a.data_wait(), b.data_wait()));
  out.set_forward_backward(mean(a.forward_backward(), b.forward_backward()));
  out.set_local_reduce(mean(a.local_reduce(), b.local_reduce()));
  out.set_push(mean(a.push(), b.push()));
  out.set_barrier_wait(mean(a.barrier_wait(), b.barrier_wait()));
  out.set_pull(mean(a.pull(), b.pull()));
  out.set_update(mean(a.update(), b.update()));
  out.set_evaluate(mean(a.evaluate(), b.evaluate()));
  return out;
}

void MetricHistory::Add(MetricPoint point) {
  while (!points_.empty() && points_.back().step() >= point.step()) {
    points_.pop_back();
    in_last_ = stride_;
  }
  if (!points_.empty() && in_last_ < stride_) {
    TakeIn(points_.back(), point);
    points_.back() = std::move(point);
    ++in_last_;
  } else {
    points_.push_back(std::move(point));
    in_last_ = 1;
  }
  changed_from_ = std::min(changed_from_, points_.size() - 1);
  if (points_.size() > static_cast<size_t>(max_points_)) Halve();
}

void MetricHistory::Shrink(int max_points) {
  while (points_.size() > static_cast<size_t>(max_points)) Halve();
}

void MetricHistory::Halve() {
  size_t kept = 0;
  for (size_t i = 0; i < points_.size(); i += 2) {
    if (i + 1 < points_.size()) {
      TakeIn(points_[i], points_[i + 1]);
      points_[kept++] = std::move(points_[i + 1]);
    } else {
      points_[kept++] = std::move(points_[i]);
    }
  }
  points_.resize(kept);
  stride_ *= 2;
  in_last_ = stride_;
  changed_from_ = 0;
}

std::vector<MetricPoint> MetricHistory::Thinned(int max_points) const {
  if (max_points <= 0 || points_.size() <= static_cast<size_t>(max_points)) return points_;
  const auto count = static_cast<size_t>(max_points);
  std::vector<MetricPoint> out;
  out.reserve(count);
  size_t next = 0;
  for (size_t i = 1; i <= count; ++i) {
    const size_t end = i * points_.size() / count;  // at least one point each, as there are more
    out.push_back(points_[next]);
    while (++next < end) {
      MetricPoint point = points_[next];
      TakeIn(out.back(), point);
      out.back() = std::move(point);
    }
  }
  return out;
}

std::vector<std::pair<int64_t, std::string>> MetricHistory::TakeChangedPages() {
  std::vector<std::pair<int64_t, std::string>> out;
  const int64_t pages = static_cast<int64_t>((points_.size() + kPagePoints - 1) / kPagePoints);
  for (int64_t page = changed_from_ / kPagePoints; page < pages; ++page) {
    if (changed_from_ >= points_.size()) break;
    v1::DurableHistoryPage saved;
    saved.set_stride(stride_);
    const size_t begin = page * kPagePoints;
    const size_t end = std::min(begin + kPagePoints, points_.size());
    for (size_t i = begin; i < end; ++i) *saved.add_points() = points_[i];
    out.emplace_back(page, saved.SerializeAsString());
  }
  for (int64_t page = pages; page < saved_pages_; ++page) out.emplace_back(page, "");
  changed_from_ = points_.size();
  saved_pages_ = pages;
  return out;
}

bool MetricHistory::LoadPage(int64_t number, const std::string& page) {
  v1::DurableHistoryPage saved;
  if (number != saved_pages_ || !saved.ParseFromString(page) || saved.stride() < 1) return false;
  for (MetricPoint& point : *saved.mutable_points()) {
    if (!points_.empty() && points_.back().step() >= point.step()) return false;
    points_.push_back(std::move(point));
  }
  stride_ = in_last_ = saved.stride();
  ++saved_pages_;
  changed_from_ = points_.size();
  return true;
}

}  // namespace capstan::coordinator::core
