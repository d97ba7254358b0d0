// The attributes of a window, which convolutions and poolings share.
#ifndef CAPSTAN_TRAINING_ONNX_WINDOW_ATTRIBUTES_H_
#define CAPSTAN_TRAINING_ONNX_WINDOW_ATTRIBUTES_H_

#include "training/onnx/importer.h"

namespace capstan::training::onnx {

// Copies kernel_shape, strides, pads, dilations and auto_pad as far as the file has them.
void CopyWindow(NodeConversion& node, Operator& op);

}  // namespace capstan::training::onnx

#endif  // CAPSTAN_TRAINING_ONNX_WINDOW_ATTRIBUTES_H_
