// `capstan shard add`, `drain` and `move`: other shards for a job that trains.
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "absl/strings/str_cat.h"
#include "client/commands/commands.h"
#include "client/text/job_view.h"
#include "services/proto_json/proto_json.h"

namespace capstan::client {
namespace {

using job::v1::ShardMove;

struct ShardFlags {
  std::string job_id;
  int shard = 0;
  std::string node;
};

ExitCode OrderMove(const ShardFlags& flags, job::v1::ShardChange change, const Context& context) {
  return WithJob(context, flags.job_id, [&](JobClient& client, const std::string& id) {
    job::v1::MoveShardRequest request;
    request.set_job_id(id);
    ShardMove& move = *request.mutable_move();
    move.set_change(change);
    move.set_shard(flags.shard);
    move.set_node(flags.node);
    const auto answer = client.Call(&JobClient::Stub::MoveShard, request);
    const Console& console = context.console;
    if (!answer.ok()) return ReportJob(client, id, answer.status(), console);
    console.Out(console.json()
                    ? services::Dump({{"job_id", id}, {"order_id", answer->order_id()}}) + "\n"
                    : absl::StrCat("order ", answer->order_id(), ": capstan events ", id,
                                   " says when its shards have moved\n"));
    return kExitDone;
  });
}

}  // namespace

void AddShard(Command parent, Action& slot) {
  Command group = parent.Sub("shard", "change the shards of a job while it trains");
  group.NeedsSub();
  const auto add = [&](const char* name, const char* help, job::v1::ShardChange change) {
    const auto flags = std::make_shared<ShardFlags>();
    Command command = group.Sub(name, help);
    command.Add("JOB", flags->job_id, "id of the job").Required();
    if (change != job::v1::SHARD_CHANGE_ADD) {
      command.Add("SHARD", flags->shard, "its number, as capstan shards shows it")
          .Required()
          .Between(0, 255);
    }
    if (change == job::v1::SHARD_CHANGE_ADD) {
      command.Add("--node", flags->node, "a param_store; default: any that is free");
    } else if (change == job::v1::SHARD_CHANGE_MOVE) {
      command.Add("--node", flags->node, "the param_store that gets it").Required();
    }
    CarryOut(
        command, slot, {Output::kTable, Output::kJson},
        [flags, change](const Context& context) { return OrderMove(*flags, change, context); });
  };
  add("add", "one shard more; all shards get equal parts", job::v1::SHARD_CHANGE_ADD);
  add("drain", "one shard less; the others get its part", job::v1::SHARD_CHANGE_DRAIN);
  add("move", "the shard goes to another node", job::v1::SHARD_CHANGE_MOVE);
}

}  // namespace capstan::client
