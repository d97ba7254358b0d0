// Feeds any text to the job file parser and to admission.
//
// Besides not crashing: text is a spec or has errors with a place and a sentence; a spec is valid,
// also with its defaults filled in, and reads back from its YAML as itself; and a spec that
// admission resolves reads back from its bytes.
#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "google/protobuf/util/message_differencer.h"
#include "services/check/check.h"
#include "training/spec/job_file.h"
#include "training/spec/resolve.h"
#include "training/spec/validate.h"

namespace {

namespace spec = capstan::training::spec;
using capstan::job::v1::JobSpec;
using google::protobuf::util::MessageDifferencer;

void CheckErrors(const spec::JobFile& file, absl::string_view text) {
  int lines = 1;
  for (const char c : text) lines += c == '\n' || c == '\r';
  for (const spec::FileError& error : file.errors) {
    CAPSTAN_CHECK(!error.message.empty());
    CAPSTAN_CHECK(error.mark.line >= 0 && error.mark.line <= lines + 1);
    CAPSTAN_CHECK(error.mark.column >= 0);
  }
  CAPSTAN_CHECK(!spec::FormatErrors("job.yaml", file.errors).empty());
}

void CheckReadsBack(const JobSpec& job) {
  CAPSTAN_CHECK(spec::Validate(job).empty());
  const spec::JobFile again = spec::ParseJobFile(spec::ToYaml(job));
  CAPSTAN_CHECK(again.errors.empty());
  CAPSTAN_CHECK(MessageDifferencer::Equals(again.spec, job));
}

void CheckResolves(const JobSpec& job) {
  capstan::common::v1::DatasetInfo digits;
  digits.set_train_samples(60000);
  digits.set_test_samples(10000);
  digits.set_channels(1);
  digits.set_height(28);
  digits.set_width(28);
  digits.set_num_classes(10);
  const auto resolved = spec::Resolve(job, digits, {.job_id = "fuzz-0000", .storage_path = "/out"});
  if (!resolved.ok()) {
    CAPSTAN_CHECK(absl::IsInvalidArgument(resolved.status()));
    return;
  }
  const std::string bytes = resolved->SerializeAsString();
  const auto parsed = spec::ParseResolved(bytes, spec::Digest(bytes));
  CAPSTAN_CHECK(parsed.ok());
  CAPSTAN_CHECK(MessageDifferencer::Equals(*parsed, *resolved));
  CAPSTAN_CHECK(!spec::PlanText(*resolved).empty());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const absl::string_view text(reinterpret_cast<const char*>(data), size);
  spec::JobFile file = spec::ParseJobFile(text);
  if (!file.errors.empty()) {
    CheckErrors(file, text);
    return 0;
  }
  CheckReadsBack(file.spec);
  CheckResolves(file.spec);
  spec::FillDefaults(file.spec);
  CheckReadsBack(file.spec);
  return 0;
}
