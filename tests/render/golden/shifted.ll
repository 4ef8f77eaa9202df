define void @shifted_0(ptr %args, i64 %task, ptr %scratch) nounwind {
entry:
  %v12 = getelementptr ptr, ptr %args, i64 0
  %v13 = load ptr, ptr %v12, align 8
  %v22 = getelementptr ptr, ptr %args, i64 1
  %v23 = load ptr, ptr %v22, align 8
  br label %loop1
loop1:
  %i_2.8 = phi i64 [ 0, %entry ], [ %i_2.8.next, %loop1 ]
  %i_2.m8 = phi i64 [ 0, %entry ], [ %i_2.m8.next, %loop1 ]
  %v1 = add i64 %i_2.8, -2
  %v2 = trunc i64 %v1 to i32
  %v3 = insertelement <8 x i32> poison, i32 %v2, i64 0
  %v4 = shufflevector <8 x i32> %v3, <8 x i32> poison, <8 x i32> zeroinitializer
  %v5 = icmp slt <8 x i32> <i32 0, i32 -1, i32 -2, i32 -3, i32 -4, i32 -5, i32 -6, i32 -7>, %v4
  %v6 = add i64 %i_2.m8, 23
  %v7 = trunc i64 %v6 to i32
  %v8 = insertelement <8 x i32> poison, i32 %v7, i64 0
  %v9 = shufflevector <8 x i32> %v8, <8 x i32> poison, <8 x i32> zeroinitializer
  %v10 = icmp slt <8 x i32> <i32 0, i32 1, i32 2, i32 3, i32 4, i32 5, i32 6, i32 7>, %v9
  %v11 = and <8 x i1> %v5, %v10
  %v14 = getelementptr float, ptr %v13, i64 %i_2.8
  %v15 = getelementptr float, ptr %v14, i64 -3
  %v16 = call <8 x float> @llvm.masked.load.v8f32.p0(ptr %v15, i32 4, <8 x i1> %v11, <8 x float> zeroinitializer)
  %v17 = add i64 %i_2.m8, 45
  %v18 = trunc i64 %v17 to i32
  %v19 = insertelement <8 x i32> poison, i32 %v18, i64 0
  %v20 = shufflevector <8 x i32> %v19, <8 x i32> poison, <8 x i32> zeroinitializer
  %v21 = icmp slt <8 x i32> <i32 0, i32 1, i32 2, i32 3, i32 4, i32 5, i32 6, i32 7>, %v20
  %v24 = getelementptr float, ptr %v23, i64 %i_2.8
  call void @llvm.masked.store.v8f32.p0(<8 x float> %v16, ptr %v24, i32 4, <8 x i1> %v21)
  %i_2.8.sum = add i64 %i_2.8, 8
  %i_2.8.next = freeze i64 %i_2.8.sum
  %i_2.m8.sum = add i64 %i_2.m8, -8
  %i_2.m8.next = freeze i64 %i_2.m8.sum
  %i_2.more = icmp ult i64 %i_2.8.next, 48
  br i1 %i_2.more, label %loop1, label %after2
after2:
  ret void
}
declare <8 x float> @llvm.masked.load.v8f32.p0(ptr, i32, <8 x i1>, <8 x float>)
declare void @llvm.masked.store.v8f32.p0(<8 x float>, ptr, i32, <8 x i1>)
