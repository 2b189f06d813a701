// Package remote is for operators that read from or write to clusters of other people. The
// administrator of such a cluster may run a program in place of the API server, and any cluster may
// be slow. The package limits the memory and the time that one cluster can cost the operator, so
// that the cluster does not slow down the reconciles of other clusters:
//
//   - [NewKubeconfigs] makes clients from Secrets with kubeconfigs, and [NewClient] from other
//     configurations. Answers of a cluster are bounded in bytes, in JSON values and in time.
//   - [Lanes] share the workers of a controller among clusters. Slow clusters use a separate lane.
//     Each reconcile has a budget for answers.
//   - [Budgets] are for programs without a controller.
//
// Package remotetest provides API servers with hostile answers for tests of an operator.
package remote
