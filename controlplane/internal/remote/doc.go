// Package remote bounds what the administrator of a runtime, who may run a program in place of the
// API server, costs the control plane. All that comes from a runtime is read through it.
//
//   - [Distrust] bounds connections, headers and answers of a runtime, and [Budgets] what they cost
//     in one reconcile and in the process.
//   - [Text] and [Error] bound texts before they are logged, stored or put in a status.
//   - [Managers] and [Token] read names, and [Sum] keeps an identity without its text.
package remote
