#include "training/history/event_file.h"

#include <bit>
#include <cstring>
#include <map>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "training/codec/crc32c.h"

namespace capstan::training {
namespace {

// Wire types of Protocol Buffers.
constexpr int kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5;
// Fields of Event, Summary and Summary.Value.
constexpr int kWallTime = 1, kStep = 2, kFileVersion = 3, kSummary = 5;
constexpr int kValue = 1;
constexpr int kTag = 1, kSimpleValue = 2;

template <typename T>
void PutFixed(std::string& out, T value) {
  for (size_t i = 0; i < sizeof(T); ++i) out += static_cast<char>((value >> (8 * i)) & 0xff);
}

void PutVarint(std::string& out, uint64_t value) {
  for (; value >= 0x80; value >>= 7) out += static_cast<char>((value & 0x7f) | 0x80);
  out += static_cast<char>(value);
}

void PutKey(std::string& out, int field, int type) {
  PutVarint(out, static_cast<uint64_t>(field << 3 | type));
}

void PutBytes(std::string& out, int field, absl::string_view bytes) {
  PutKey(out, field, kBytes);
  PutVarint(out, bytes.size());
  absl::StrAppend(&out, bytes);
}

uint32_t Checksum(absl::string_view bytes) { return std::rotr(Crc32c(bytes), 15) + 0xa282ead8; }

std::string Record(absl::string_view event) {
  std::string record;
  PutFixed<uint64_t>(record, event.size());
  PutFixed(record, Checksum(record));
  absl::StrAppend(&record, event);
  PutFixed(record, Checksum(event));
  return record;
}

std::string EventAt(double unix_seconds) {
  std::string event;
  PutKey(event, kWallTime, kFixed64);
  PutFixed(event, std::bit_cast<uint64_t>(unix_seconds));
  return event;
}

double SecondsOf(const google::protobuf::Timestamp& time) {
  return static_cast<double>(time.seconds()) + 1e-9 * time.nanos();
}

}  // namespace

std::string EventFileHead(double unix_seconds) {
  std::string event = EventAt(unix_seconds);
  PutBytes(event, kFileVersion, "brain.Event:2");
  return Record(event);
}

std::string EventRecord(const ScalarEvent& scalars) {
  std::string event = EventAt(scalars.unix_seconds);
  PutKey(event, kStep, kVarint);
  PutVarint(event, static_cast<uint64_t>(scalars.step));
  std::string summary;
  for (const auto& [tag, number] : scalars.values) {
    std::string value;
    PutBytes(value, kTag, tag);
    PutKey(value, kSimpleValue, kFixed32);
    PutFixed(value, std::bit_cast<uint32_t>(static_cast<float>(number)));
    PutBytes(summary, kValue, value);
  }
  PutBytes(event, kSummary, summary);
  return Record(event);
}

std::vector<ScalarEvent> EventsOf(const JobHistory& history, const std::vector<std::string>& names,
                                  WrittenEvents& written) {
  std::map<int64_t, ScalarEvent> events;
  for (const std::string& name : names) {
    const auto curve = CurveOf(history, name);
    if (!curve.ok()) continue;
    const int64_t after =
        absl::StartsWith(name, "validation_") ? written.evaluation_step : written.step;
    for (const auto& [step, value] : curve->points) {
      if (step > after) events[step].values.emplace_back(name, value);
    }
  }
  if (!history.points.empty()) written.step = history.points.back().step();
  if (!history.evaluations.empty()) written.evaluation_step = history.evaluations.back().step;
  std::vector<ScalarEvent> list;
  auto point = history.points.begin();
  for (auto& [step, event] : events) {
    while (point != history.points.end() && std::next(point) != history.points.end() &&
           point->step() < step) {
      ++point;
    }
    if (point != history.points.end()) event.unix_seconds = SecondsOf(point->time());
    event.step = step;
    list.push_back(std::move(event));
  }
  return list;
}

}  // namespace capstan::training
