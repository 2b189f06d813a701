// Package remote is for operators that read from clusters of other people, or write to them. The
// administrator of such a cluster may run a program in place of the API server, and any cluster may
// be slow. The package bounds what that costs the operator, and keeps it from other clusters:
//
//   - [NewKubeconfigs] makes clients from Secrets with kubeconfigs, and [NewClient] from other
//     configurations. What a cluster answers is bounded in bytes, values of JSON and time.
//   - [Lanes] share the workers of a controller among clusters, with a lane of its own for slow ones.
//     Each reconcile has a budget for answers.
//   - [Budgets] are for programs without a controller.
//
// Package remotetest has API servers with hostile answers, to test an operator with.
package remote
