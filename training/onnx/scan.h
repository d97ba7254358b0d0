// A look at the bytes of an ONNX file before they are parsed, because small messages need far more
// memory than bytes.
#ifndef CAPSTAN_TRAINING_ONNX_SCAN_H_
#define CAPSTAN_TRAINING_ONNX_SCAN_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace capstan::training::onnx {

// Allocates nothing. InvalidArgument: the bytes are not well-formed messages, or they have more
// than `max_fields` fields. Each byte of a list of 64-bit whole numbers counts as one.
absl::Status ScanFields(absl::string_view bytes, int64_t max_fields);

}  // namespace capstan::training::onnx

#endif  // CAPSTAN_TRAINING_ONNX_SCAN_H_
