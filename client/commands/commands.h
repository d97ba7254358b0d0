// The sub-commands, one source file per subject. Each function adds its commands to `parent` (the
// program or `capstan job`). Parsing stores the action of the given command in `slot`; see
// command.h.
#ifndef CAPSTAN_CLIENT_COMMANDS_COMMANDS_H_
#define CAPSTAN_CLIENT_COMMANDS_COMMANDS_H_

#include "client/commands/command.h"
#include "client/job_source.h"

namespace capstan::client {

// FILE, --example NAME and --set KEY=VALUE.
void AddJobSource(Command command, JobSource& source);

void AddRun(Command parent, Action& slot);         // run, clean
void AddValidate(Command parent, Action& slot);    // validate
void AddData(Command parent, Action& slot);        // data get
void AddCerts(Command parent, Action& slot);       // certs init, certs rotate, certs issue
void AddContexts(Command parent, Action& slot);    // context, login
void AddSubmit(Command parent, Action& slot);      // submit
void AddList(Command parent, Action& slot);        // list
void AddDescribe(Command parent, Action& slot);    // describe
void AddWatch(Command parent, Action& slot);       // watch, wait
void AddLogs(Command parent, Action& slot);        // logs
void AddMetrics(Command parent, Action& slot);     // metrics
void AddEvents(Command parent, Action& slot);      // events
void AddControl(Command parent, Action& slot);     // cancel, suspend, resume, retry, update
void AddVerify(Command parent, Action& slot);      // verify
void AddCheckpoint(Command parent, Action& slot);  // checkpoint and its sub-commands
void AddAdmin(Command parent, Action& slot);       // node, healthcheck, log-level
void AddDoctor(Command parent, Action& slot);      // doctor
void AddTop(Command parent, Action& slot);         // top, shards
void AddShard(Command parent, Action& slot);       // shard add, drain, move
void AddPage(Command parent, Action& slot);        // page
void AddBackup(Command parent, Action& slot);      // backup, restore
void AddModel(Command parent, Action& slot);       // model list, describe, export
void AddPredict(Command parent, Action& slot);     // predict
void AddBench(Command parent, Action& slot);       // bench kvstore, step

// Adds step to `bench`.
void AddBenchStep(Command group, Action& slot);

// Adds export, download and delete to `checkpoint`.
void AddCheckpointFiles(Command group, Action& slot);

}  // namespace capstan::client

#endif  // CAPSTAN_CLIENT_COMMANDS_COMMANDS_H_
