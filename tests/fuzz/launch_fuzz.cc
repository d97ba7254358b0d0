// Feeds any bytes to the parsers of what the hosts of a launch send: bundles, a node's lines, and
// the answers of Grid Engine. The first byte chooses.
//
// Besides not crashing, what is accepted reads back the same after it is written.
#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "client/launch/bundle.h"
#include "client/launch/scheduler.h"
#include "services/check/check.h"

namespace {

namespace client = capstan::client;

void Bundle(absl::string_view line) {
  const auto rank = client::RankOfBundleLine(line);
  if (!rank.has_value()) return;
  const auto bundle = client::ParseBundleLine(*rank, line);
  CAPSTAN_CHECK(bundle.has_value());
  if (!bundle->ok()) {
    CAPSTAN_CHECK(absl::IsInvalidArgument(bundle->status()));
    return;
  }
  std::string again = client::FormatBundleLine(*rank, **bundle);
  CAPSTAN_CHECK(again.find('\n') == again.size() - 1);
  again.pop_back();
  const auto parsed = client::ParseBundleLine(*rank, again);
  CAPSTAN_CHECK(parsed.has_value() && parsed->ok());
  CAPSTAN_CHECK(client::BundleText(**parsed) == client::BundleText(**bundle));
}

void Line(absl::string_view text) {
  const auto line = client::ParseNodeLine(text);
  if (!line.has_value()) return;
  std::string again = client::FormatNodeLine(*line);
  again.pop_back();
  const auto parsed = client::ParseNodeLine(again);
  CAPSTAN_CHECK(parsed.has_value() && parsed->rank == line->rank && parsed->kind == line->kind &&
                parsed->text == line->text);
}

void GridEngine(absl::string_view text) {
  const auto id = client::ParseQsub(text);
  CAPSTAN_CHECK(!id.ok() || *client::ParseQsub(*id + ".1-3:1") == *id);
  for (const bool success : {true, false}) {
    const absl::Status status = client::ParseQstat(success, text, "");
    CAPSTAN_CHECK(status.ok() || absl::IsAborted(status) || absl::IsFailedPrecondition(status));
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const absl::string_view rest(reinterpret_cast<const char*>(data) + 1, size - 1);
  switch (data[0] % 3) {
    case 0:
      Bundle(rest);
      break;
    case 1:
      Line(rest);
      break;
    case 2:
      GridEngine(rest);
      break;
  }
  return 0;
}
