// Package condition makes CEL expressions total, so that an API server can always evaluate them.
//
// An API server skips a webhook when a match condition fails, if the failure policy is Ignore. CEL
// cannot catch an error, and no function of CEL is true for an error and false for false. Therefore
// [Total] puts a guard before an expression: the facts under which no step of it fails. If these
// facts do not hold, the result is true.
//
// Total accepts the part of CEL for which it knows these facts, and refuses everything else. It
// bounds the sizes of values, because an expression that exceeds the cost limit also fails.
package condition
