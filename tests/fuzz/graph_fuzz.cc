// Reads any bytes as the message of a network. It is a graph, or it is refused with places and
// sentences without control characters. A graph written as a message and as a job file reads back
// as itself, even if defaults are left out.
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "capstan/job/v1/job_spec.pb.h"
#include "google/protobuf/util/message_differencer.h"
#include "services/check/check.h"
#include "training/spec/graph_message.h"
#include "training/spec/job_file.h"

namespace {

namespace ct = capstan::training;
using GraphMessage = capstan::job::v1::Graph;
using google::protobuf::util::MessageDifferencer;

void CheckSentence(const std::string& text) {
  CAPSTAN_CHECK(!text.empty());
  for (const char c : text) CAPSTAN_CHECK(absl::ascii_isprint(c));
}

void CheckReadsBack(const GraphMessage& message) {
  capstan::job::v1::JobSpec spec;
  *spec.mutable_model()->mutable_graph() = message;
  const ct::spec::JobFile file = ct::spec::ParseJobFile(ct::spec::ToYaml(spec));
  CAPSTAN_CHECK(MessageDifferencer::Equals(file.spec.model(), spec.model()));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  GraphMessage message;
  if (!message.ParseFromArray(data, static_cast<int>(size))) return 0;
  message.DiscardUnknownFields();  // no file has them; a resolved spec with one is refused
  const ct::Shape input = {3, 9, 8};
  const std::vector<ct::spec::GraphProblem> problems = ct::spec::CheckGraph(message);
  CAPSTAN_CHECK(problems.size() <= 16);
  for (const ct::spec::GraphProblem& problem : problems) CheckSentence(problem.message);
  const auto graph = ct::spec::GraphOf(message, input);
  if (!graph.ok()) {
    CAPSTAN_CHECK(absl::IsInvalidArgument(graph.status()));
    CheckSentence(std::string(graph.status().message()));
    return 0;
  }
  CAPSTAN_CHECK(problems.empty());
  CheckReadsBack(message);
  const GraphMessage whole = ct::spec::ToMessage(*graph);
  const auto again = ct::spec::GraphOf(whole, input);
  CAPSTAN_CHECK(again.ok());
  CAPSTAN_CHECK(MessageDifferencer::Equals(ct::spec::ToMessage(*again), whole));
  ct::spec::FillGraphDefaults(message);
  GraphMessage twice = message;
  ct::spec::FillGraphDefaults(twice);
  CAPSTAN_CHECK(MessageDifferencer::Equals(message, twice));
  CheckReadsBack(message);
  const auto filled = ct::spec::GraphOf(message, input);
  CAPSTAN_CHECK(filled.ok());
  CAPSTAN_CHECK(MessageDifferencer::Equals(ct::spec::ToMessage(*filled), whole));
  return 0;
}
