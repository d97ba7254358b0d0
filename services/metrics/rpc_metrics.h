// An interceptor for grpc_server_started_total, grpc_server_handled_total and
// grpc_server_handling_seconds, and one for the same with grpc_client_, for the calls that this
// process makes. Names and labels are those of go-grpc-middleware, because dashboards exist for it.
//
// Only methods that are known beforehand get their own series, because anybody who reaches the port
// can send any name. All others count as grpc_service="unknown", grpc_method="unknown".
// Thread-safe. Must outlive the server that uses its factory.
#ifndef CAPSTAN_SERVICES_METRICS_RPC_METRICS_H_
#define CAPSTAN_SERVICES_METRICS_RPC_METRICS_H_

#include <array>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "services/metrics/registry.h"

namespace grpc::experimental {
class ClientInterceptorFactoryInterface;
class ServerInterceptorFactoryInterface;
}  // namespace grpc::experimental

namespace capstan::services {

class RpcMetrics {
 public:
  enum class Side { kServer, kClient };
  // `service_names`: full names of the API services, which must be in the generated descriptors. A
  // server's health service is always known.
  RpcMetrics(MetricsRegistry& registry, const std::vector<std::string>& service_names,
             Side side = Side::kServer);
  ~RpcMetrics();

  // Adds a method that is in no descriptor of this process. `type`: unary, client_stream,
  // server_stream or bidi_stream. Call it before the server starts.
  void AddMethod(const std::string& service, const std::string& method, const std::string& type);

  // For ServerOptions::interceptors. Borrows this object.
  std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface> MakeInterceptorFactory();
  // For ChannelOptions::interceptors. Borrows this object.
  std::unique_ptr<grpc::experimental::ClientInterceptorFactoryInterface>
  MakeClientInterceptorFactory();

  static constexpr int kCodeCount = 17;  // gRPC status codes 0 .. 16
  struct Method {
    prometheus::Counter* started;
    std::array<prometheus::Counter*, kCodeCount> handled;
    prometheus::Histogram* seconds;
  };
  // `path`: "/package.Service/Method".
  const Method& Find(const std::string& path) const;

 private:
  CounterFamily started_;
  CounterFamily handled_;
  HistogramFamily seconds_;
  std::map<std::string, Method> methods_;  // by path; fixed once the server runs
};

}  // namespace capstan::services

#endif  // CAPSTAN_SERVICES_METRICS_RPC_METRICS_H_
