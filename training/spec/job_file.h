// Reads a job file: strict YAML to JobSpec, every error with file, line, column and the path of the
// key.
#ifndef CAPSTAN_TRAINING_SPEC_JOB_FILE_H_
#define CAPSTAN_TRAINING_SPEC_JOB_FILE_H_

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "capstan/job/v1/job_spec.pb.h"
#include "training/spec/yaml_tree.h"

namespace capstan::training::spec {

struct FileError {
  Mark mark;            // 0:0 for what came from --set
  std::string message;  // names the key, the value and the limit
};

// Where each key stood that is one of ours, by its path; 0:0 for what came from --set.
using Marks = std::map<std::string, Mark>;

struct JobFile {
  job::v1::JobSpec spec;  // as written; defaults are not filled in
  std::vector<FileError>
      errors;  // in the order of the file; the spec counts only when there is none
  Marks marks;
};

// `overrides` are the `--set key=value` pairs, e.g. {"training.epochs", "3"}: the value is read as
// YAML and replaces what the file says; null takes the key out, so that its default holds. All errors of names, types and values are reported at once
// (training/spec/validate.h), unless the file is no YAML; what is missing or does not go together
// only where there is none of them: it may follow from one.
JobFile ParseJobFile(absl::string_view text,
                     const std::vector<std::pair<std::string, std::string>>& overrides = {});

// Where a path was written, or its nearest group that was; 0:0 where none was.
Mark MarkOf(const Marks& marks, absl::string_view path);

// "job.yaml:3:3: error: unknown field 'training.epoches' (did you mean 'epochs'?)", a line each.
std::string FormatErrors(absl::string_view filename, const std::vector<FileError>& errors);

// Every key of the job file that docs/interface.md names, and what this version does with it.
struct KeyInfo {
  std::string path;
  bool carried_out = false;  // false: refused by name
};
std::vector<KeyInfo> AllKeys();

// The spec as a job file that reads back to the same spec.
std::string ToYaml(const job::v1::JobSpec& spec);

}  // namespace capstan::training::spec

#endif  // CAPSTAN_TRAINING_SPEC_JOB_FILE_H_
