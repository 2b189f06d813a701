package controlplane

//go:generate controller-gen object crd:crdVersions=v1,maxDescLen=400 paths=./api/... output:crd:dir=config/crd
//go:generate controller-gen rbac:roleName=runtime-watcher-controlplane paths=./... output:rbac:dir=../../deploy/controlplane
