// `capstan predict FILE.onnx INPUTS`: the network of an ONNX file on arrays of this host.
#ifndef CAPSTAN_CLIENT_COMMANDS_PREDICT_FILE_H_
#define CAPSTAN_CLIENT_COMMANDS_PREDICT_FILE_H_

#include <string>

#include "client/console.h"
#include "client/text/exit_codes.h"

namespace capstan::client {

struct PredictFileOptions {
  std::string file;     // the ONNX file
  std::string inputs;   // .npz or .npy; empty: not given, an error
  std::string outputs;  // likewise
  std::string device;
  int batch = 64;   // samples computed at a time
  int threads = 0;  // 0: one per core
};

// Whether `name` is an ONNX file rather than a job: it ends with .onnx, or is an existing file. The
// folder of a run is no file.
bool NamesOnnxFile(const std::string& name);

// Errors are printed. kExitUsage: a file or an array is wrong. Writes nothing then, and if it is
// interrupted.
ExitCode PredictFile(const PredictFileOptions& options, const Console& console);

}  // namespace capstan::client

#endif  // CAPSTAN_CLIENT_COMMANDS_PREDICT_FILE_H_
