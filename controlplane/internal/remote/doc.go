// Package remote bounds the costs that the administrator of a runtime can cause in the control
// plane. The administrator may run a program in place of the API server. All that comes from a
// runtime is read through it.
//
//   - [Distrust] bounds connections, headers and answers of a runtime. [Budgets] bound their costs
//     in one reconcile and in the process.
//   - [Text] and [Error] bound texts before they are logged, stored or put in a status.
//   - [Managers] and [Token] read names, and [Sum] keeps an identity without its text.
package remote
