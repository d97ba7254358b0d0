// `capstan node`, `healthcheck` and `log-level`.
#include <grpcpp/grpcpp.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "client/commands/commands.h"
#include "client/text/job_json.h"
#include "client/text/job_view.h"
#include "client/text/text_table.h"
#include "client/text/top_text.h"
#include "grpc/health/v1/health.grpc.pb.h"
#include "services/channel/channel.h"
#include "services/proto_json/proto_json.h"
#include "services/security/handshake.h"

namespace capstan::client {
namespace {

using services::Dump;

std::string NodeTable(const job::v1::ListNodesResponse& answer, bool wide, int width) {
  std::vector<std::string> head = {"NODE", "ROLE", "STATE", "HOST", "BUSY", "SEEN", "JOBS"};
  if (wide) head.insert(head.end(), {"VERSION", "INCARNATION", "DEVICES", "DATA ADDRESS"});
  TextTable table(head);
  for (const auto& node : answer.nodes()) {
    std::vector<std::string> row = {
        node.name(),
        RoleName(node.role()),
        node.state(),
        node.host(),
        node.devices().empty() ? "" : absl::StrCat(node.busy_devices(), "/", node.devices_size()),
        ShortDuration(node.last_seen_seconds()) + " ago",
        absl::StrJoin(node.job_ids(), ",")};
    if (wide) {
      row.push_back(node.version());
      row.push_back(absl::StrCat(node.incarnation()));
      row.push_back(absl::StrJoin(node.devices(), ","));
      row.push_back(node.data_address());
    }
    table.Add(std::move(row));
  }
  return table.Text(width);
}

ExitCode ListNodes(JobClient& client, const Console& console) {
  const auto answer = client.ListNodes();
  if (!answer.ok()) return Report(answer.status(), console);
  if (console.json()) {
    console.Out(NodeListJson({answer->nodes().begin(), answer->nodes().end()}) + "\n");
  } else if (console.output == Output::kName) {
    for (const auto& node : answer->nodes()) console.Out(node.name() + "\n");
  } else if (answer->nodes().empty()) {
    console.Note("no nodes: start capstan_gpu_worker and capstan_param_store with --coordinator\n");
  } else {
    console.Out(NodeTable(*answer, console.output == Output::kWide,
                          console.stdout_tty ? console.width : 0));
  }
  return kExitDone;
}

ExitCode ShowNode(const job::v1::NodeInfo& node, const Console& console) {
  if (console.json()) {
    const std::string list = NodeListJson({node});
    console.Out(list.substr(1, list.size() - 2) + "\n");
  } else {
    console.Out(NodeText(node));
  }
  return kExitDone;
}

ExitCode DescribeNode(const std::string& name, JobClient& client, const Console& console) {
  const auto answer = client.ListNodes();
  if (!answer.ok()) return Report(answer.status(), console);
  for (const auto& node : answer->nodes()) {
    if (node.name() == name) return ShowNode(node, console);
  }
  return Report(absl::NotFoundError(absl::StrCat("no node ", name)), console);
}

// Calls DrainNode or UndrainNode.
template <typename Request, typename Response>
ExitCode ChangeNode(grpc::Status (JobClient::AdminStub::*method)(grpc::ClientContext*,
                                                                 const Request&, Response*),
                    const std::string& name, JobClient& client, const Console& console) {
  Request request;
  request.set_node(name);
  const auto answer = client.Call(method, request);
  if (!answer.ok()) return Report(answer.status(), console);
  if (console.json()) return ShowNode(answer->node(), console);
  const job::v1::NodeInfo& node = answer->node();
  console.Out(
      absl::StrCat(node.name(), "  ", node.drained() ? "gets no new work" : "takes work", "\n"));
  if (node.drained() && !node.job_ids().empty()) {
    console.Note(absl::StrCat("it still works for ", absl::StrJoin(node.job_ids(), ", "),
                              "; see capstan node describe ", node.name(), "\n"));
  }
  return kExitDone;
}

constexpr absl::Duration kLookTimeout = absl::Milliseconds(500);  // for the reason of the silence

// Works for any service of Capstan, because all of them serve grpc.health.v1.
ExitCode HealthCheck(const std::string& service, const Context& context) {
  const Console& console = context.console;
  const absl::StatusOr<Connection> connection = FindCoordinator(context);
  if (!connection.ok()) return Report(connection.status(), console);
  if (const ExitCode code = NeedCoordinator(*connection, console); code != kExitDone) return code;
  services::ChannelOptions options;
  options.peer = connection->address;
  options.security = connection->security;
  options.peer_role = std::nullopt;
  options.retry = false;
  const auto channel = services::MakeChannel(options);
  if (!channel.ok()) {
    Report(channel.status(), console);
    return kExitUsage;
  }
  const auto stub = grpc::health::v1::Health::NewStub(*channel);
  const auto call = services::NewContext(connection->timeout);
  call->set_wait_for_ready(false);  // an absent service is an answer, too
  grpc::health::v1::HealthCheckRequest request;
  request.set_service(service);
  grpc::health::v1::HealthCheckResponse response;
  const absl::Status status = services::FromGrpcStatus(stub->Check(call.get(), request, &response));
  const bool serving =
      status.ok() && response.status() == grpc::health::v1::HealthCheckResponse::SERVING;
  const std::string word = serving                                   ? "SERVING"
                           : status.ok() || absl::IsNotFound(status) ? "NOT_SERVING"
                                                                     : "UNREACHABLE";
  if (console.json()) {
    console.Out(Dump({{"address", connection->address.ToString()}, {"status", word}}) + "\n");
  } else if (!console.quiet) {
    console.Out(word + "\n");
  }
  if (serving) return kExitDone;
  if (status.ok() || absl::IsNotFound(status)) return kExitInternal;
  const services::Handshake met = services::TryHandshake({.peer = connection->address,
                                                          .security = connection->security,
                                                          .role = std::nullopt,
                                                          .timeout = kLookTimeout});
  Report(met.why.empty()
             ? status
             : absl::UnavailableError(absl::StrCat(connection->address.ToString(), ": ", met.why)),
         console);
  return kExitUnreachable;
}

struct LogLevelOptions {
  std::string node;
  std::string level;
};

ExitCode SetLogLevel(const LogLevelOptions& options, JobClient& client, const Console& console) {
  job::v1::SetLogLevelRequest request;
  request.set_node(options.node);
  request.set_level(options.level);
  const auto answer = client.Call(&JobClient::AdminStub::SetLogLevel, request);
  if (!answer.ok()) return Report(answer.status(), console);
  if (console.json()) {
    console.Out(Dump({{"node", options.node}, {"level", options.level}}) + "\n");
  } else {
    console.Out(absl::StrCat(options.node.empty() ? "coordinator" : options.node, "  ",
                             options.level, "\n"));
  }
  return kExitDone;
}

}  // namespace

void AddAdmin(Command parent, Action& slot) {
  Command node = parent.Sub("node", "the machines that train and store");
  node.NeedsSub();
  Command list = node.Sub("list", "worker and shard services, by name");
  CarryOut(list, slot, {Output::kTable, Output::kWide, Output::kJson, Output::kName},
           [](const Context& context) {
             return WithCoordinator(
                 context, [&](JobClient& client) { return ListNodes(client, context.console); });
           });

  const auto name = std::make_shared<std::string>();
  const auto about_one = [&](const char* verb, const char* help, auto what) {
    Command command = node.Sub(verb, help);
    command.Add("NODE", *name, "name of a worker or shard service").Required();
    CarryOut(command, slot, {Output::kTable, Output::kJson}, [name, what](const Context& context) {
      return WithCoordinator(
          context, [&](JobClient& client) { return what(*name, client, context.console); });
    });
  };
  about_one("describe", "one node: devices, memory, jobs", DescribeNode);
  about_one("drain", "give it no new work; elastic jobs continue without it",
            [](const std::string& name, JobClient& client, const Console& console) {
              return ChangeNode(&JobClient::AdminStub::DrainNode, name, client, console);
            });
  about_one("undrain", "let it take work again",
            [](const std::string& name, JobClient& client, const Console& console) {
              return ChangeNode(&JobClient::AdminStub::UndrainNode, name, client, console);
            });

  const auto service = std::make_shared<std::string>();
  Command health = parent.Sub(
      "healthcheck",
      "exit code 0: serving, 1: not serving, 3: unreachable; --address may be any service's");
  health.Add("--service", *service, "liveness, readiness or a gRPC service; default all");
  CarryOut(health, slot, {Output::kTable, Output::kJson},
           [service](const Context& context) { return HealthCheck(*service, context); });

  const auto options = std::make_shared<LogLevelOptions>();
  Command level =
      parent.Sub("log-level",
                 "set the log level of a service until it ends; of the coordinator unless --node");
  level.Add("LEVEL", options->level, "debug | info | warning | error")
      .Required()
      .OneOf({"debug", "info", "warning", "error"});
  level.Add("--node", options->node, "name of a worker or shard service");
  CarryOut(level, slot, {Output::kTable, Output::kJson}, [options](const Context& context) {
    return WithCoordinator(
        context, [&](JobClient& client) { return SetLogLevel(*options, client, context.console); });
  });
}

}  // namespace capstan::client
