# An alternative to `make image`, which needs no engine and gives the same digest twice.
# A test holds that both build the agent with the same flags.
FROM --platform=$BUILDPLATFORM golang:1.26.8-bookworm@sha256:9fdc884aacc3bec89b20ffc69f4bb369c78210e3e4f600387b5128b12c199f81 AS build
ARG TARGETOS TARGETARCH VERSION=dev
WORKDIR /src
COPY . .
RUN cd cmd/agent && export GOOS=$TARGETOS GOARCH=$TARGETARCH && \
    GOWORK=off CGO_ENABLED=0 go build -trimpath -buildvcs=false -ldflags "-s -w -X main.version=$VERSION" -o /agent .
# The license texts of the parts of the agent.
RUN go run ./tools/image -licenses -out /licenses

FROM scratch
LABEL org.opencontainers.image.source="https://github.com/runtime-watcher/runtime-watcher"
COPY --from=build /licenses /licenses
COPY --from=build --chmod=0555 /agent /agent
USER 65532:65532
WORKDIR /
ENTRYPOINT ["/agent"]
