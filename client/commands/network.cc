#include "client/commands/network.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "client/job_source.h"
#include "client/model/onnx_file.h"
#include "training/graph/models.h"
#include "training/spec/resolve.h"
#include "training/spec/rules.h"
#include "training/spec/validate.h"

namespace capstan::client {
namespace {

// [channels, height, width] of the flag.
absl::StatusOr<training::Shape> InputOf(const NetworkFlags& flags) {
  auto shape = ParseImageShape(*flags.input);
  if (shape.ok()) return shape;
  return absl::InvalidArgumentError(absl::StrCat(flags.input_flag, " ", shape.status().message()));
}

absl::StatusOr<Network> OfOnnxFile(const std::string& file, const NetworkFlags& flags) {
  if (flags.input.has_value() || flags.num_classes.has_value()) {
    return absl::InvalidArgumentError(
        absl::StrCat(flags.input.has_value() ? flags.input_flag : flags.classes_flag,
                     " would do nothing: an ONNX file says it"));
  }
  auto onnx = ReadOnnxFile(file);
  // There are no jobs of one class: a single output is a number.
  if (onnx.ok() && onnx->graph.num_classes() == 1) {
    onnx = ReadOnnxFile(file, training::onnx::OnnxLoss::kMeanSquaredError);
  }
  if (!onnx.ok()) return onnx.status();
  return Network{std::move(onnx->graph), std::nullopt,
                 ImportNotes{onnx->model.final_activation, onnx->model.shared_weights}};
}

// The images of a job's data set, if they follow from the job file.
std::optional<common::v1::DatasetInfo> ImagesOf(const job::v1::Data& data) {
  common::v1::DatasetInfo info;
  const auto set = [&info](int32_t channels, int32_t height, int32_t width) {
    info.set_channels(channels);
    info.set_height(height);
    info.set_width(width);
  };
  if (data.shape_size() == 3) {
    set(data.shape(0), data.shape(1), data.shape(2));
  } else if (data.format() == "cifar10_bin") {
    set(3, 32, 32);
  } else if (data.format() == "synthetic_digits") {
    set(1, 28, 28);
  } else {
    return std::nullopt;
  }
  return info;
}

absl::StatusOr<Network> OfJobFile(const std::string& file, const NetworkFlags& flags,
                                  const Console& console) {
  JobPlaces places;
  JobSource source;
  source.file = file;
  if (flags.num_classes.has_value()) {
    source.sets.push_back(absl::StrCat("model.num_classes=", *flags.num_classes));
  }
  auto spec = LoadJob(source, console, places);
  if (!spec.ok()) return spec.status();
  training::spec::FillDefaults(*spec);
  absl::StatusOr<training::Graph> graph = absl::InternalError("");
  if (flags.input.has_value() && !spec->model().has_num_classes() &&
      !spec->model().has_num_outputs()) {  // of a text
    return absl::InvalidArgumentError(
        absl::StrCat("'model.num_classes' follows from the text: beside ", flags.input_flag,
                     " give ", flags.classes_flag));
  }
  if (flags.input.has_value()) {
    const auto input = InputOf(flags);
    if (!input.ok()) return input.status();
    graph = training::spec::GraphOfModel(spec->model(), *input);
  } else if (const auto images = ImagesOf(spec->data()); images.has_value()) {
    const auto input = training::spec::InputShape(spec->data(), *images);
    if (!input.ok()) return input.status();
    graph = training::spec::GraphOfModel(spec->model(), *input);
  } else {
    const auto resolved = ResolveHere(*spec);
    if (absl::IsNotFound(resolved.status())) {
      return absl::NotFoundError(absl::StrCat("the data is not on this host, so give ",
                                              flags.input_flag, ": ", resolved.status().message()));
    }
    if (!resolved.ok()) return resolved.status();
    graph = training::spec::MakeGraph(*resolved);
  }
  if (!graph.ok()) return graph.status();
  return Network{*std::move(graph), *std::move(spec), {}};
}

}  // namespace

bool IsBuiltInModel(const std::string& name) {
  for (const BuiltInModel& model : BuiltInModels()) {
    if (model.name == name) return true;
  }
  return false;
}

absl::StatusOr<Network> BuiltInNetwork(const std::string& name, const NetworkFlags& flags) {
  training::Shape input = {1, 28, 28};
  int64_t classes = 10;
  for (const BuiltInModel& model : BuiltInModels()) {
    if (model.name != name) continue;
    input = model.input;
    classes = model.num_classes;
  }
  if (flags.input.has_value()) {
    auto shape = InputOf(flags);
    if (!shape.ok()) return shape.status();
    input = *std::move(shape);
  }
  auto graph = training::MakeModel(name, flags.num_classes.value_or(classes), input);
  if (!graph.ok()) return graph.status();
  return Network{*std::move(graph), std::nullopt, {}};
}

absl::StatusOr<Network> NetworkOfFile(const std::string& file, const NetworkFlags& flags,
                                      const Console& console) {
  return IsOnnxFile(file) ? OfOnnxFile(file, flags) : OfJobFile(file, flags, console);
}

}  // namespace capstan::client
