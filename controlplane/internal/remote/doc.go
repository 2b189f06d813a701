// Package remote bounds texts of a runtime that the control plane logs, stores or puts in a status.
// The administrator of a runtime chooses these texts. Package remote of adapters/controllerruntime
// bounds the costs of the answers of its API server.
//
//   - [Text] and [Error] bound texts.
//   - [Managers] and [Token] read names, and [Sum] keeps an identity without its text.
package remote
