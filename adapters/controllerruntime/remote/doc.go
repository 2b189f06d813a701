// Package remote is for operators that read from clusters of other people, or write to them. The
// administrator of such a cluster may run a program in place of the API server, and any cluster may
// be slow. The package bounds the costs for the operator, and keeps it from other clusters:
//
//   - [NewKubeconfigs] makes clients from Secrets with kubeconfigs, and [NewClient] from other
//     configurations. Answers of a cluster are bounded in bytes, values of JSON and time.
//   - [Lanes] share the workers of a controller among clusters. Slow clusters have another lane.
//     Each reconcile has a budget for answers.
//   - [Budgets] are for programs without a controller.
//
// Package remotetest has API servers with hostile answers, to test an operator with.
package remote
