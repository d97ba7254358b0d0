// Convolution and dense layer on oneDNN 2.x. The only file that sees its headers.
#include <array>
#include <cstring>
#include <dnnl.hpp>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gpu_worker/engine/cpu/aligned.h"
#include "gpu_worker/engine/cpu/linear.h"
#include "gpu_worker/engine/cpu/vendor_threads.h"

// Of the OpenMP runtime that oneDNN links. Declared here because a compiler's own OpenMP switch
// could bring a second runtime.
extern "C" void omp_set_num_threads(int threads);
extern "C" int omp_get_max_threads(void);

namespace capstan::engine {
namespace {

using dnnl::memory;
using Desc = dnnl::memory::desc;

dnnl::engine& Engine() {
  static dnnl::engine& engine = *new dnnl::engine(dnnl::engine::kind::cpu, 0);
  return engine;
}

absl::Status CallError(absl::string_view call, dnnl_status_t code) {
  return absl::InternalError(
      absl::StrCat("device cpu: oneDNN ", call, ": status ", static_cast<int>(code)));
}

// Runs `make`, which throws dnnl::error, and turns that into a status.
template <typename Make>
absl::Status Guard(absl::string_view call, Make make) {
  try {
    make();
    return absl::OkStatus();
  } catch (const dnnl::error& error) {
    if (error.status == dnnl_out_of_memory) {
      return absl::ResourceExhaustedError(absl::StrCat("device cpu: oneDNN ", call, ": no memory"));
    }
    if (error.status == dnnl_unimplemented) {
      return absl::UnimplementedError(absl::StrCat("device cpu: oneDNN ", call, ": none"));
    }
    return CallError(call, error.status);
  }
}

// One primitive with all its arguments, ready to run without building anything.
class Call {
 public:
  Call() = default;

  // `stream` and `primitive` must outlive the call.
  Call(dnnl::stream& stream, const dnnl::primitive& primitive, const char* name)
      : stream_(&stream), primitive_(primitive.get()), name_(name) {}

  void Add(int argument, const Desc& desc, void* data) {
    memories_.emplace_back(desc, Engine(), data);
    arguments_.push_back({argument, memories_.back().get()});
  }
  void Point(int argument, const void* data) {
    for (const dnnl_exec_arg_t& entry : arguments_) {
      if (entry.arg == argument) dnnl_memory_set_data_handle(entry.memory, const_cast<void*>(data));
    }
  }
  absl::Status Run() const {
    const dnnl_status_t code = dnnl_primitive_execute(
        primitive_, stream_->get(), static_cast<int>(arguments_.size()), arguments_.data());
    return code == dnnl_success ? absl::OkStatus() : CallError(name_, code);
  }

 private:
  dnnl::stream* stream_ = nullptr;
  const_dnnl_primitive_t primitive_ = nullptr;
  const char* name_ = "";
  std::vector<memory> memories_;
  std::vector<dnnl_exec_arg_t> arguments_;
};

// A change of layout: made only where the layouts differ.
struct Reorder {
  Desc from, to;
  dnnl::reorder primitive;
  Desc scratch;
  explicit operator bool() const { return static_cast<bool>(primitive); }

  void Make(const Desc& source, const Desc& target, const dnnl::primitive_attr& attributes) {
    from = source;
    to = target;
    if (source == target) return;
    const dnnl::reorder::primitive_desc desc(Engine(), source, Engine(), target, attributes);
    primitive = dnnl::reorder(desc);
    scratch = desc.scratchpad_desc();
  }
  Call Bind(dnnl::stream& stream, void* source, void* target, char* scratch_memory) const {
    Call call(stream, primitive, "reorder");
    call.Add(DNNL_ARG_FROM, from, source);
    call.Add(DNNL_ARG_TO, to, target);
    call.Add(DNNL_ARG_SCRATCHPAD, scratch, scratch_memory);
    return call;
  }
};

class OnednnLinear : public LinearKernel {
 public:
  OnednnLinear(const LinearGeometry& geometry, int64_t batch) : g_(geometry), batch_(batch) {}

  // False: reference code only. Throws dnnl::error.
  bool Make() {
    attributes_.set_scratchpad_mode(dnnl::scratchpad_mode::user);
    using Tag = memory::format_tag;
    const auto f32 = memory::data_type::f32;
    bias_ = g_.bias ? Desc({g_.out_channels}, f32, Tag::a) : Desc();
    Desc any;
    if (g_.dense) {
      const memory::dims w_dims = {g_.out_channels, g_.in_channels};
      x_ = Desc({batch_, g_.in_channels}, f32, Tag::ab);
      y_ = Desc({batch_, g_.out_channels}, f32, Tag::ab);
      canonical_ = Desc(w_dims, f32, Tag::ab);
      any = Desc(w_dims, f32, Tag::any);
    } else {
      const memory::dims w_dims = {g_.out_channels, g_.in_channels, g_.window.kernel_shape[0],
                                   g_.window.kernel_shape[1]};
      x_ = Desc({batch_, g_.in_channels, g_.in_h, g_.in_w}, f32, Tag::nhwc);
      y_ = Desc({batch_, g_.out_channels, g_.out_h, g_.out_w}, f32, Tag::nhwc);
      canonical_ = Desc(w_dims, f32, Tag::oihw);
      any = Desc(w_dims, f32, Tag::any);
    }
    if (!(g_.dense ? MakeDense(any) : MakeConvolution(any))) return false;
    forward_weights_.Make(canonical_, forward_layout_, attributes_);
    if (g_.data_gradient) data_weights_.Make(canonical_, data_layout_, attributes_);
    gradient_.Make(gradient_layout_, canonical_, attributes_);
    return true;
  }

  absl::Status Allocate() {
    const int64_t bias_bytes = RoundUp(g_.out_channels * 4, kTensorAlignBytes);
    const int64_t forward_bytes = Bytes(forward_layout_);
    const bool own_data = g_.data_gradient && data_layout_ != forward_layout_;
    const int64_t data_bytes = own_data ? Bytes(data_layout_) : 0;
    const int64_t scratch = std::max(ScratchBytes(forward_weights_), ScratchBytes(data_weights_));
    weight_bytes_ = bias_bytes + forward_bytes + data_bytes + scratch;
    absl::StatusOr<AlignedBytes> memory = AllocateAligned(weight_bytes_, "weights");
    if (!memory.ok()) return memory.status();
    weights_ = *std::move(memory);
    own_bias_ = weights_.get();
    own_forward_ = own_bias_ + bias_bytes;
    own_data_ = own_data ? own_forward_ + forward_bytes : own_forward_;
    char* const load_scratch = own_forward_ + forward_bytes + data_bytes;
    return Guard("memory", [&] {
      if (forward_weights_) {
        load_forward_ = forward_weights_.Bind(stream_, nullptr, own_forward_, load_scratch);
      }
      if (own_data && data_weights_) {
        load_data_ = data_weights_.Bind(stream_, nullptr, own_data_, load_scratch);
      }
    });
  }

  std::vector<std::string> Describe() const override { return names_; }
  int64_t scratch_bytes() const override {
    int64_t bytes = 0;
    for (const Desc* desc : {&forward_scratch_, &weights_scratch_, &data_scratch_}) {
      bytes = std::max(bytes, Bytes(*desc));
    }
    return PrivateGradientBytes() + std::max(bytes, ScratchBytes(gradient_));
  }
  int64_t weight_bytes() const override { return weight_bytes_; }

  absl::Status LoadWeights(const float* weight, const float* bias) override {
    const size_t canonical_bytes = canonical_.get_size();
    if (forward_weights_) {
      load_forward_.Point(DNNL_ARG_FROM, weight);
      const absl::Status status = load_forward_.Run();
      if (!status.ok()) return status;
    } else {
      std::memcpy(own_forward_, weight, canonical_bytes);
    }
    if (own_data_ != own_forward_) {
      if (data_weights_) {
        load_data_.Point(DNNL_ARG_FROM, weight);
        const absl::Status status = load_data_.Run();
        if (!status.ok()) return status;
      } else {
        std::memcpy(own_data_, weight, canonical_bytes);
      }
    }
    if (g_.bias) std::memcpy(own_bias_, bias, static_cast<size_t>(g_.out_channels) * 4);
    return absl::OkStatus();
  }

  absl::StatusOr<std::unique_ptr<LinearCalls>> Bind(const LinearBuffers& buffers) override;

 private:
  friend class OnednnCalls;

  static int64_t Bytes(const Desc& desc) {
    return RoundUp(static_cast<int64_t>(desc.get_size()), kTensorAlignBytes);
  }
  static int64_t ScratchBytes(const Reorder& reorder) {
    return reorder ? Bytes(reorder.scratch) : 0;
  }
  int64_t PrivateGradientBytes() const { return gradient_ ? Bytes(gradient_layout_) : 0; }

  // Keeps the primitive if it is more than reference code.
  template <typename Primitive, typename PrimitiveDesc>
  bool Keep(const char* pass, const PrimitiveDesc& desc, dnnl::primitive& primitive,
            Desc& scratch) {
    const char* const name = desc.impl_info_str();
    if (absl::StartsWith(name, "ref")) return false;
    names_.push_back(absl::StrCat(pass, ": ", name));
    primitive = Primitive(desc);
    scratch = desc.scratchpad_desc();
    return true;
  }

  bool MakeConvolution(const Desc& any) {
    const training::Window& w = g_.window;
    const memory::dims strides = {w.strides[0], w.strides[1]};
    const memory::dims dilates = {w.dilations[0] - 1, w.dilations[1] - 1};
    const memory::dims before = {w.pads[0], w.pads[1]};
    const memory::dims after = {w.pads[2], w.pads[3]};
    const auto direct = dnnl::algorithm::convolution_direct;
    using Forward = dnnl::convolution_forward;
    using Weights = dnnl::convolution_backward_weights;
    using Data = dnnl::convolution_backward_data;
    const auto training = dnnl::prop_kind::forward_training;
    const Forward::desc forward =
        g_.bias
            ? Forward::desc(training, direct, x_, any, bias_, y_, strides, dilates, before, after)
            : Forward::desc(training, direct, x_, any, y_, strides, dilates, before, after);
    const Forward::primitive_desc forward_desc(forward, attributes_, Engine());
    const Weights::desc weights =
        g_.bias ? Weights::desc(direct, x_, any, bias_, y_, strides, dilates, before, after)
                : Weights::desc(direct, x_, any, y_, strides, dilates, before, after);
    const Weights::primitive_desc weights_desc(weights, attributes_, Engine(), forward_desc);
    forward_layout_ = forward_desc.weights_desc();
    gradient_layout_ = weights_desc.diff_weights_desc();
    if (!Keep<Forward>("forward", forward_desc, forward_, forward_scratch_) ||
        !Keep<Weights>("backward weights", weights_desc, backward_weights_, weights_scratch_)) {
      return false;
    }
    if (!g_.data_gradient) return true;
    const Data::primitive_desc data_desc(
        Data::desc(direct, x_, any, y_, strides, dilates, before, after), attributes_, Engine(),
        forward_desc);
    data_layout_ = data_desc.weights_desc();
    return Keep<Data>("backward data", data_desc, backward_data_, data_scratch_);
  }

  bool MakeDense(const Desc& any) {
    using Forward = dnnl::inner_product_forward;
    using Weights = dnnl::inner_product_backward_weights;
    using Data = dnnl::inner_product_backward_data;
    const auto training = dnnl::prop_kind::forward_training;
    const Forward::desc forward = g_.bias ? Forward::desc(training, x_, any, bias_, y_)
                                          : Forward::desc(training, x_, any, y_);
    const Forward::primitive_desc forward_desc(forward, attributes_, Engine());
    const Weights::desc weights =
        g_.bias ? Weights::desc(x_, any, bias_, y_) : Weights::desc(x_, any, y_);
    const Weights::primitive_desc weights_desc(weights, attributes_, Engine(), forward_desc);
    forward_layout_ = forward_desc.weights_desc();
    gradient_layout_ = weights_desc.diff_weights_desc();
    if (!Keep<Forward>("forward", forward_desc, forward_, forward_scratch_) ||
        !Keep<Weights>("backward weights", weights_desc, backward_weights_, weights_scratch_)) {
      return false;
    }
    if (!g_.data_gradient) return true;
    const Data::primitive_desc data_desc(Data::desc(x_, any, y_), attributes_, Engine(),
                                         forward_desc);
    data_layout_ = data_desc.weights_desc();
    return Keep<Data>("backward data", data_desc, backward_data_, data_scratch_);
  }

  const LinearGeometry g_;
  const int64_t batch_;
  dnnl::stream stream_{Engine()};  // of LoadWeights
  dnnl::primitive_attr attributes_;
  Desc x_, y_, bias_, canonical_;
  Desc forward_layout_, data_layout_, gradient_layout_;  // of the weights
  Desc forward_scratch_, weights_scratch_, data_scratch_;
  dnnl::primitive forward_, backward_weights_, backward_data_;
  Reorder forward_weights_, data_weights_, gradient_;
  Call load_forward_, load_data_;
  std::vector<std::string> names_;

  AlignedBytes weights_;
  int64_t weight_bytes_ = 0;
  char* own_bias_ = nullptr;
  char* own_forward_ = nullptr;
  char* own_data_ = nullptr;
};

class OnednnCalls : public LinearCalls {
 public:
  // Throws dnnl::error.
  OnednnCalls(OnednnLinear& kernel, const LinearBuffers& buffers) : k_(kernel) {
    char* const private_gradient = buffers.scratch;
    char* const scratch = buffers.scratch + k_.PrivateGradientBytes();
    forward_ = Call(stream_, k_.forward_, "forward");
    forward_.Add(DNNL_ARG_SRC, k_.x_, buffers.x);
    forward_.Add(DNNL_ARG_WEIGHTS, k_.forward_layout_, k_.own_forward_);
    if (k_.g_.bias) forward_.Add(DNNL_ARG_BIAS, k_.bias_, k_.own_bias_);
    forward_.Add(DNNL_ARG_DST, k_.y_, buffers.y);
    forward_.Add(DNNL_ARG_SCRATCHPAD, k_.forward_scratch_, scratch);

    weights_ = Call(stream_, k_.backward_weights_, "backward weights");
    weights_.Add(DNNL_ARG_SRC, k_.x_, buffers.x);
    weights_.Add(DNNL_ARG_DIFF_DST, k_.y_, buffers.dy);
    weights_.Add(DNNL_ARG_DIFF_WEIGHTS, k_.gradient_layout_, private_gradient);
    if (k_.g_.bias) weights_.Add(DNNL_ARG_DIFF_BIAS, k_.bias_, nullptr);
    weights_.Add(DNNL_ARG_SCRATCHPAD, k_.weights_scratch_, scratch);
    if (k_.gradient_) {
      gradient_ = k_.gradient_.Bind(stream_, private_gradient, nullptr, scratch);
    }

    if (!k_.g_.data_gradient) return;
    data_ = Call(stream_, k_.backward_data_, "backward data");
    data_.Add(DNNL_ARG_DIFF_DST, k_.y_, buffers.dy);
    data_.Add(DNNL_ARG_WEIGHTS, k_.data_layout_, k_.own_data_);
    data_.Add(DNNL_ARG_DIFF_SRC, k_.x_, buffers.dx);
    data_.Add(DNNL_ARG_SCRATCHPAD, k_.data_scratch_, scratch);
  }

  absl::Status Forward() override { return forward_.Run(); }

  absl::Status BackwardWeights(float* weight, float* bias) override {
    if (bias != nullptr) weights_.Point(DNNL_ARG_DIFF_BIAS, bias);
    if (!k_.gradient_) {
      weights_.Point(DNNL_ARG_DIFF_WEIGHTS, weight);
      return weights_.Run();
    }
    const absl::Status status = weights_.Run();
    if (!status.ok()) return status;
    gradient_.Point(DNNL_ARG_TO, weight);
    return gradient_.Run();
  }

  absl::Status BackwardData() override { return data_.Run(); }

 private:
  OnednnLinear& k_;
  dnnl::stream stream_{Engine()};
  Call forward_, weights_, gradient_, data_;
};

absl::StatusOr<std::unique_ptr<LinearCalls>> OnednnLinear::Bind(const LinearBuffers& buffers) {
  std::unique_ptr<LinearCalls> calls;
  const absl::Status status =
      Guard("memory", [&] { calls = std::make_unique<OnednnCalls>(*this, buffers); });
  if (!status.ok()) return status;
  return calls;
}

}  // namespace

int SetVendorThreads(int threads) {
  const int before = omp_get_max_threads();
  omp_set_num_threads(threads);
  return before;
}

absl::StatusOr<std::unique_ptr<LinearKernel>> MakeOnednnLinear(const LinearGeometry& geometry,
                                                               int64_t batch) {
  std::unique_ptr<OnednnLinear> kernel;
  bool made = false;
  absl::Status status = Guard("primitive", [&] {
    kernel = std::make_unique<OnednnLinear>(geometry, batch);
    made = kernel->Make();
  });
  if (absl::IsUnimplemented(status) || (status.ok() && !made)) {
    return std::unique_ptr<LinearKernel>();
  }
  if (status.ok()) status = kernel->Allocate();
  if (!status.ok()) return status;
  return std::unique_ptr<LinearKernel>(std::move(kernel));
}

std::string LinearLibrary() {
  const dnnl_version_t* const version = dnnl_version();
  const char* isa = "unknown instruction set";
  switch (dnnl::get_effective_cpu_isa()) {
    case dnnl::cpu_isa::sse41:
      isa = "sse41";
      break;
    case dnnl::cpu_isa::avx:
      isa = "avx";
      break;
    case dnnl::cpu_isa::avx2:
    case dnnl::cpu_isa::avx2_vnni:
      isa = "avx2";
      break;
    case dnnl::cpu_isa::avx512_core:
    case dnnl::cpu_isa::avx512_core_vnni:
    case dnnl::cpu_isa::avx512_core_bf16:
    case dnnl::cpu_isa::avx512_core_amx:
      isa = "avx512_core";
      break;
    default:
      break;
  }
  return absl::StrCat("oneDNN ", version->major, ".", version->minor, ".", version->patch, ", ",
                      isa);
}

}  // namespace capstan::engine
