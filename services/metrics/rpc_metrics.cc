#include "services/metrics/rpc_metrics.h"

#include "absl/strings/str_cat.h"
#include "google/protobuf/descriptor.h"
#include "grpcpp/support/client_interceptor.h"
#include "grpcpp/support/server_interceptor.h"
#include "services/check/check.h"
#include "services/clock/clock.h"
#include "services/sync/mutex.h"

namespace capstan::services {
namespace {

// codes.Code.String() of grpc-go, which the dashboards expect.
constexpr std::array<const char*, RpcMetrics::kCodeCount> kCodeNames = {
    "OK",       "Canceled",       "Unknown",          "InvalidArgument",   "DeadlineExceeded",
    "NotFound", "AlreadyExists",  "PermissionDenied", "ResourceExhausted", "FailedPrecondition",
    "Aborted",  "OutOfRange",     "Unimplemented",    "Internal",          "Unavailable",
    "DataLoss", "Unauthenticated"};
constexpr int kCancelled = 1;
constexpr int kUnknown = 2;

const char* TypeName(const google::protobuf::MethodDescriptor& method) {
  if (method.client_streaming()) return method.server_streaming() ? "bidi_stream" : "client_stream";
  return method.server_streaming() ? "server_stream" : "unary";
}

class RpcInterceptor : public grpc::experimental::Interceptor {
 public:
  explicit RpcInterceptor(const RpcMetrics::Method& method) : method_(method) {
    method_.started->Increment();
    MutexLock lock(mu_);
    counted_ = false;
  }
  ~RpcInterceptor() override {
    // The caller went away before a status was sent.
    Count(kCancelled);
  }
  void Intercept(grpc::experimental::InterceptorBatchMethods* methods) override {
    using Hook = grpc::experimental::InterceptionHookPoints;
    if (methods->QueryInterceptionHookPoint(Hook::PRE_SEND_STATUS)) {  // server side
      Count(static_cast<int>(methods->GetSendStatus().error_code()));
    }
    if (methods->QueryInterceptionHookPoint(Hook::POST_RECV_STATUS)) {  // client side
      Count(static_cast<int>(methods->GetRecvStatus()->error_code()));
    }
    methods->Proceed();
  }

 private:
  // Only the first call counts.
  void Count(int code) {
    {
      MutexLock lock(mu_);
      if (counted_) return;
      counted_ = true;
    }
    if (code < 0 || code >= RpcMetrics::kCodeCount) code = kUnknown;
    method_.handled[static_cast<size_t>(code)]->Increment();
    method_.seconds->Observe(absl::ToDoubleSeconds(MonotonicNow() - start_));
  }

  const RpcMetrics::Method& method_;
  const absl::Duration start_ = MonotonicNow();
  // gRPC passes the call from thread to thread in an order that ThreadSanitizer cannot see. The
  // lock makes it visible.
  Mutex mu_;
  bool counted_ ABSL_GUARDED_BY(mu_);
};

class RpcInterceptorFactory : public grpc::experimental::ServerInterceptorFactoryInterface {
 public:
  explicit RpcInterceptorFactory(const RpcMetrics& metrics) : metrics_(metrics) {}
  grpc::experimental::Interceptor* CreateServerInterceptor(
      grpc::experimental::ServerRpcInfo* info) override {
    return new RpcInterceptor(metrics_.Find(info->method()));
  }

 private:
  const RpcMetrics& metrics_;
};

class ClientRpcInterceptorFactory : public grpc::experimental::ClientInterceptorFactoryInterface {
 public:
  explicit ClientRpcInterceptorFactory(const RpcMetrics& metrics) : metrics_(metrics) {}
  grpc::experimental::Interceptor* CreateClientInterceptor(
      grpc::experimental::ClientRpcInfo* info) override {
    return new RpcInterceptor(metrics_.Find(info->method()));
  }

 private:
  const RpcMetrics& metrics_;
};

// The name and help of a family, for each side.
struct Texts {
  const char* name;
  const char* help;
};
struct SideTexts {
  Texts started, handled, seconds;
};
SideTexts TextsOf(RpcMetrics::Side side) {
  if (side == RpcMetrics::Side::kServer) {
    return {{"grpc_server_started_total", "RPCs started on the server."},
            {"grpc_server_handled_total", "RPCs completed on the server."},
            {"grpc_server_handling_seconds", "Response latency of RPCs handled by the server."}};
  }
  return {{"grpc_client_started_total", "RPCs started by this process."},
          {"grpc_client_handled_total", "RPCs of this process that have ended."},
          {"grpc_client_handling_seconds", "Time from start to end of RPCs of this process."}};
}

}  // namespace

RpcMetrics::RpcMetrics(MetricsRegistry& registry, const std::vector<std::string>& service_names,
                       Side side)
    : started_(registry.Counter(TextsOf(side).started.name, TextsOf(side).started.help,
                                {"grpc_type", "grpc_service", "grpc_method"})),
      handled_(registry.Counter(TextsOf(side).handled.name, TextsOf(side).handled.help,
                                {"grpc_type", "grpc_service", "grpc_method", "grpc_code"})),
      seconds_(registry.Histogram(TextsOf(side).seconds.name, TextsOf(side).seconds.help,
                                  LatencyBuckets(), {"grpc_type", "grpc_service", "grpc_method"})) {
  AddMethod("unknown", "unknown", "unknown");
  if (side == Side::kServer) {
    AddMethod("grpc.health.v1.Health", "Check", "unary");
    AddMethod("grpc.health.v1.Health", "Watch", "server_stream");
  }
  for (const std::string& name : service_names) {
    const google::protobuf::ServiceDescriptor* const service =
        google::protobuf::DescriptorPool::generated_pool()->FindServiceByName(name);
    CAPSTAN_CHECK(service != nullptr);
    for (int i = 0; i < service->method_count(); ++i) {
      AddMethod(name, service->method(i)->name(), TypeName(*service->method(i)));
    }
  }
}

RpcMetrics::~RpcMetrics() = default;

void RpcMetrics::AddMethod(const std::string& service, const std::string& method,
                           const std::string& type) {
  prometheus::Labels labels = {
      {"grpc_type", type}, {"grpc_service", service}, {"grpc_method", method}};
  Method series;
  series.started = &started_.With(labels);
  series.seconds = &seconds_.With(labels);
  for (size_t code = 0; code < kCodeNames.size(); ++code) {
    labels["grpc_code"] = kCodeNames[code];
    series.handled[code] = &handled_.With(labels);
  }
  methods_.insert_or_assign(absl::StrCat("/", service, "/", method), series);
}

std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface>
RpcMetrics::MakeInterceptorFactory() {
  return std::make_unique<RpcInterceptorFactory>(*this);
}

std::unique_ptr<grpc::experimental::ClientInterceptorFactoryInterface>
RpcMetrics::MakeClientInterceptorFactory() {
  return std::make_unique<ClientRpcInterceptorFactory>(*this);
}

const RpcMetrics::Method& RpcMetrics::Find(const std::string& path) const {
  const auto it = methods_.find(path);
  return it != methods_.end() ? it->second : methods_.at("/unknown/unknown");
}

}  // namespace capstan::services
