#include "client/launch/bundle.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace capstan::client {
namespace {

using Json = nlohmann::json;

constexpr absl::string_view kLinePrefix = "capstan-node ";
constexpr absl::string_view kBundlePrefix = "bundle ";
constexpr int kMaxCount = 65536;  // of workers on a host, and of nodes of a launch
constexpr std::pair<NodeLine::Kind, absl::string_view> kKinds[] = {
    {NodeLine::Kind::kHello, "hello"},
    {NodeLine::Kind::kOutput, "out"},
    {NodeLine::Kind::kEnd, "end"}};

// Removes the first word and its space from the front of `text`, and returns the word.
absl::string_view TakeWord(absl::string_view& text) {
  const size_t end = std::min(text.find(' '), text.size());
  const absl::string_view word = text.substr(0, end);
  text.remove_prefix(std::min(end + 1, text.size()));
  return word;
}

}  // namespace

std::string BundleText(const NodeBundle& bundle) {
  return Json({{"role", std::string(services::RoleName(bundle.role))},
               {"name", bundle.name},
               {"address", bundle.address},
               {"coordinator", bundle.coordinator},
               {"folder", bundle.folder},
               {"authority", bundle.authority},
               {"certificate", bundle.certificate},
               {"key", bundle.key},
               {"token", bundle.token},
               {"tokens", bundle.tokens},
               {"workers_of_host", bundle.workers_of_host},
               {"nodes", bundle.nodes},
               {"job_id", bundle.job_id},
               {"state_dir", bundle.state_dir},
               {"env", bundle.env}})
      .dump(-1, ' ', false, Json::error_handler_t::replace);  // an address is a host's own text
}

absl::StatusOr<NodeBundle> ParseBundle(absl::string_view text) {
  const Json json = Json::parse(text.begin(), text.end(), nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return absl::InvalidArgumentError("bundle: it is not a JSON object");
  for (const char* count : {"workers_of_host", "nodes"}) {
    // get_to would convert any number, even one too large for an int.
    const auto value = json.find(count);
    if (value == json.end() || !value->is_number_integer() || *value < 1 || *value > kMaxCount) {
      return absl::InvalidArgumentError(
          absl::StrCat("bundle: '", count, "' is not a number from 1 to ", kMaxCount));
    }
  }
  NodeBundle bundle;
  const char* key = "";
  try {
    const auto take = [&](const char* name, auto& field) {
      key = name;
      json.at(name).get_to(field);
    };
    std::string role;
    take("role", role);
    const absl::StatusOr<services::Role> parsed = services::ParseRole(role);
    if (!parsed.ok()) return parsed.status();
    bundle.role = *parsed;
    take("name", bundle.name);
    take("address", bundle.address);
    take("coordinator", bundle.coordinator);
    take("folder", bundle.folder);
    take("authority", bundle.authority);
    take("certificate", bundle.certificate);
    take("key", bundle.key);
    take("token", bundle.token);
    take("tokens", bundle.tokens);
    take("workers_of_host", bundle.workers_of_host);
    take("nodes", bundle.nodes);
    take("job_id", bundle.job_id);
    take("state_dir", bundle.state_dir);
    take("env", bundle.env);
  } catch (const Json::exception&) {
    return absl::InvalidArgumentError(
        absl::StrCat("bundle: '", key, "' is missing or of another type"));
  }
  return bundle;
}

std::string FormatNodeLine(const NodeLine& line) {
  absl::string_view kind;
  for (const auto& [value, name] : kKinds) {
    if (value == line.kind) kind = name;
  }
  return absl::StrCat(kLinePrefix, line.rank, " ", kind, " ", line.text, "\n");
}

std::optional<NodeLine> ParseNodeLine(absl::string_view line) {
  if (!absl::ConsumePrefix(&line, kLinePrefix)) return std::nullopt;
  NodeLine parsed;
  if (!absl::SimpleAtoi(TakeWord(line), &parsed.rank)) return std::nullopt;
  const absl::string_view kind = TakeWord(line);
  for (const auto& [value, name] : kKinds) {
    if (name != kind) continue;
    parsed.kind = value;
    parsed.text = std::string(line);
    return parsed;
  }
  return std::nullopt;
}

std::string FormatBundleLine(int rank, const NodeBundle& bundle) {
  return absl::StrCat(kBundlePrefix, rank, " ", BundleText(bundle), "\n");
}

std::optional<absl::StatusOr<NodeBundle>> ParseBundleLine(int rank, absl::string_view line) {
  if (RankOfBundleLine(line) != rank) return std::nullopt;
  line.remove_prefix(kBundlePrefix.size());
  TakeWord(line);
  return ParseBundle(line);
}

std::optional<int> RankOfBundleLine(absl::string_view line) {
  int rank = 0;
  if (!absl::ConsumePrefix(&line, kBundlePrefix) || !absl::SimpleAtoi(TakeWord(line), &rank)) {
    return std::nullopt;
  }
  return rank;
}

}  // namespace capstan::client
